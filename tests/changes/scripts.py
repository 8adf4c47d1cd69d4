"""Training scripts of different styles, each with one full training step."""

FLAT = """
    import torch
    from torch import nn

    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(10):
        x = torch.randn(4, 8, device="cuda")
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
MAIN = """
    import argparse
    import torch as th
    import torch.optim as optim

    def main():
        args = argparse.ArgumentParser().parse_args()
        net = th.nn.Linear(8, 8)
        net.to("cuda")
        opt = optim.Adam(
            net.parameters(),
            lr=1e-3,
        )
        criterion = th.nn.MSELoss()
        for x, y in []:
            opt.zero_grad()
            output = net(x)
            loss = criterion(output, y)
            loss.backward()
            opt.step()

    if __name__ == "__main__":
        main()
"""
ACCUMULATION = """
    import torch
    import torch.nn.functional as F
    from torch.optim import SGD

    model = torch.nn.Linear(8, 8)
    optimizer = SGD(model.parameters(), 0.1)
    ACCUMULATE = 4
    while True:
        for micro in range(ACCUMULATE):
            logits = model(torch.randn(4, 8))
            loss = F.cross_entropy(logits, torch.zeros(4, dtype=torch.long))
            loss = loss / ACCUMULATE
            loss.backward()
        optimizer.step()
"""
DIVIDED = """
    import torch
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(9):
        loss = model(torch.randn(4, 8)).sum()
        (loss / 4).backward()
        optimizer.step()
"""
ONE_EXPRESSION = """
    import torch
    import torch.nn.functional as F

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in []:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
CALLED_LOSS = """
    import torch
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    for x in []:
        preds = model(x)
        preds.mean().backward()
        optimizer.step()
"""
FUNCTION = """
    import torch
    from torch import nn, optim

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x)

    def compute_loss(net, batch):
        return net(batch).mean()

    def train(net, optimizer, batches):
        net.train()
        for batch in batches:
            loss = compute_loss(net, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def run():
        net = Net().to("cuda")
        optimizer = optim.AdamW(net.parameters(), lr=1e-4)
        train(net, optimizer, [])
"""
TRAINER_CLASS = """
    import torch

    class Trainer:
        def __init__(self, model, config):
            self.model = model.to(config.device)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr, weight_decay=0.1,)

        def step(self, x, y):
            logits, self.loss = self.model(x, y)
            self.optimizer.zero_grad(set_to_none=True)
            self.loss.backward()
            self.optimizer.step()
"""
RANGES = '''
    """A benchmark."""
    from __future__ import annotations
    import torch
    import torch.cuda.nvtx as nvtx

    def bench(model, x, y):
        optimizer = torch.optim.AdamW(model.parameters())
        with nvtx.range("forward"):
            out = model(x)
        with nvtx.range("loss and backward"):
            loss = torch.nn.functional.cross_entropy(out, y)
            loss.backward()
        optimizer.step()

    def run():
        model = torch.nn.Linear(8, 8)
        bench(model, None, None)
'''
BRANCHES = """
    import os, sys
    try:
        import torch
    except ImportError:
        sys.exit(1)

    if __name__ == '__main__':
        kind = os.environ["KIND"]
        if kind == "a":
            model = torch.nn.Linear(8, 8)
        elif kind == "b":
            model = torch.nn.Linear(8, 8, bias=False)
        else:
            raise ValueError(kind)
        model.to('cuda')
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        while True:
            if kind == "a":
                out = model(torch.ones(8))
            else:
                out = model(torch.zeros(8))
            loss = out.sum()
            loss.backward()
            optimizer.step()
"""
TWO_MODELS = """
    import torch
    import torch.optim as optim

    class G(torch.nn.Module):
        pass

    netD = G().cuda()
    netG = G().cuda()
    optimizerD = optim.Adam(netD.parameters(), betas=(0.5, 0.999))
    optimizerG = optim.Adam(netG.parameters(), betas=(0.5, 0.999), fused=False)
    for data in []:
        errD = netD(data).mean()
        errD.backward()
        fake = netG(data)
        errG = netD(fake).mean()
        errG.backward()
        optimizerD.step()
"""
TABS_AND_WINDOWS = (
    "import torch\r\nmodel = torch.nn.Linear(8, 8)\r\nopt = torch.optim.SGD(model.parameters(), lr=1)\r\n"
    + (
        'for x in []:\r\n\tloss = model(x).sum()  # größer\r\n\ttext = """\r\nstays\r\n"""\r\n\tloss = loss * 2\r\n'
        "\tloss.backward()\r\n\topt.step()"
    )
)
CLOSURE = """
    import torch
    seq = torch.nn.LSTMCell(1, 51)
    optimizer = torch.optim.SGD(seq.parameters(), lr=0.8)
    seq.train()
    criterion = torch.nn.MSELoss()

    def closure():
        optimizer.zero_grad()
        out = seq(1)
        loss = criterion(out, 2)
        loss.backward()
        return loss

    optimizer.step(closure)
"""
LATE_IMPORT = """
    def main():
        import torch
        from torch.optim import AdamW
        model = torch.nn.Linear(8, 8)
        optimizer = AdamW(model.parameters())
        loss = model(torch.ones(8)).sum()
        loss.backward()
        optimizer.step()

    main()
"""
SCRIPTS = {
    "flat": FLAT,
    "main": MAIN,
    "accumulation": ACCUMULATION,
    "divided": DIVIDED,
    "one_expression": ONE_EXPRESSION,
    "called_loss": CALLED_LOSS,
    "function": FUNCTION,
    "trainer_class": TRAINER_CLASS,
    "ranges": RANGES,
    "branches": BRANCHES,
    "two_models": TWO_MODELS,
    "tabs_and_windows": TABS_AND_WINDOWS,
    "closure": CLOSURE,
    "late_import": LATE_IMPORT,
}
