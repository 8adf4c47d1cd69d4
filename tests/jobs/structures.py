"""Structures of scripts that are followed, each as a small script. The guide on `profile` names them."""

from typing import NamedTuple

HEAD = """
import copy, os, threading
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 16), nn.Linear(16, 4)
    def forward(self, x):
        return self.outer(torch.relu(self.inner(x)))
def batch():
    return torch.randn(6, 8), torch.randint(0, 4, (6,))
N = 24
"""
MODEL = "model = Net(); optimizer = torch.optim.AdamW(model.parameters())\n"


class Structure(NamedTuple):
    """name: as the guide has it. source: of the script. step: what ends a step. model: its class, `script` without one.
    batch: samples of a step, 0 if they are not known. phases: that it must have. compiles: whether it
    needs PyTorch's compiler."""

    name: str
    source: str
    step: str
    model: str = "Net"
    batch: int = 6
    phases: tuple[str, ...] = ("forward", "backward", "optimizer")
    compiles: bool = False


STEP = "x, y = batch(); loss = F.cross_entropy(model(x), y); loss.backward(); optimizer.step(); optimizer.zero_grad()"
UPDATE = "update of the optimizer"

STRUCTURES = (
    Structure(
        "policy gradients with rollouts",
        MODEL
        + """
for _ in range(N):
    states = []
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(1, 8); states.append(x); torch.distributions.Categorical(logits=model(x)).sample()
    loss = torch.distributions.Categorical(logits=model(torch.cat(states))).entropy().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
        UPDATE,
        batch=5,
        phases=("evaluation", "forward", "backward", "optimizer", "zero_grad"),
    ),
    Structure(
        "distillation with a frozen teacher",
        MODEL
        + """
teacher = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 4)).requires_grad_(False)
for _ in range(N):
    x, _ = batch(); loss = F.kl_div(model(x).log_softmax(1), teacher(x).softmax(1)); loss.backward()
    optimizer.step(); optimizer.zero_grad()
""",
        UPDATE,
    ),
    Structure(
        "preferences (DPO) with a reference model",
        MODEL
        + """
reference = copy.deepcopy(model).requires_grad_(False)
for _ in range(N):
    (good, _), (bad, _) = batch(), batch()
    with torch.no_grad(): first, second = reference(good), reference(bad)
    loss = -F.logsigmoid((model(good) - first - model(bad) + second).sum(1)).mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
""",
        UPDATE,
        batch=12,
    ),
    Structure(
        "LBFGS, whose closure computes the loss",
        "model = Net(); optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)\nx, y = batch()\n"
        """
def closure():
    optimizer.zero_grad(); loss = F.cross_entropy(model(x), y); loss.backward(); return loss
for _ in range(N): optimizer.step(closure)
""",
        UPDATE,
    ),
    Structure(
        "moving average of the weights",
        MODEL
        + "average = torch.optim.swa_utils.AveragedModel(model)\n"
        + f"for _ in range(N):\n    {STEP}; average.update_parameters(model)\n",
        UPDATE,
    ),
    Structure(
        "gradient accumulation over three batches",
        MODEL
        + """
for i in range(3 * N):
    x, y = batch(); (F.cross_entropy(model(x), y) / 3).backward()
    if i % 3 == 2: optimizer.step(); optimizer.zero_grad()
""",
        UPDATE,
        batch=18,
    ),
    Structure(
        "gradient accumulation over 120 batches",
        MODEL
        + """
for i in range(120 * N):
    x, y = batch(); (F.cross_entropy(model(x), y) / 120).backward()
    if i % 120 == 119: optimizer.step(); optimizer.zero_grad()
""",
        UPDATE,
        batch=720,
    ),
    Structure(
        "images of several sizes, in a list",
        """
class Detector(nn.Module):
    def __init__(self):
        super().__init__(); self.inner = nn.Conv2d(3, 4, 3)
    def forward(self, images, targets): return torch.stack([self.inner(image).mean() for image in images]).sum()
model = Detector(); optimizer = torch.optim.AdamW(model.parameters())
for _ in range(N):
    model([torch.randn(3, 8, 8 + i) for i in range(6)], []).backward(); optimizer.step(); optimizer.zero_grad()
""",
        UPDATE,
        model="Detector",
    ),
    Structure(
        "a dictionary as the batch, a number first",
        """
class Task(Net):
    def forward(self, batch): return F.cross_entropy(super().forward(batch["x"]), batch["y"]) * batch["weight"]
model = Task(); optimizer = torch.optim.AdamW(model.parameters())
for _ in range(N):
    x, y = batch(); model({"weight": torch.tensor(2.0), "x": x, "y": y}).backward()
    optimizer.step(); optimizer.zero_grad()
""",
        UPDATE,
        model="Task",
    ),
    Structure(
        "a smaller batch at the end of an epoch",
        MODEL
        + """
for i in range(N):
    x, y = batch(); x, y = (x[:2], y[:2]) if i % 7 == 6 else (x, y)
    F.cross_entropy(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
""",
        UPDATE,
    ),
    Structure(
        "an update by hand, without an optimizer",
        """model = Net()
for _ in range(N):
    x, y = batch(); F.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for p in model.parameters(): p -= 0.1 * p.grad; p.grad = None
""",
        "backward pass",
        phases=("forward", "backward"),
    ),
    Structure(
        "an engine with `backward` and `step`, as DeepSpeed's",
        """
class Engine(nn.Module):
    def __init__(self, module):
        super().__init__(); self.module = module; self.optimizer = torch.optim.AdamW(module.parameters())
    def forward(self, *args): return self.module(*args)
    def backward(self, loss): loss.backward()
    def step(self): self.optimizer.step(); self.optimizer.zero_grad()
engine = Engine(Net())
for _ in range(N):
    x, y = batch(); engine.backward(F.cross_entropy(engine(x), y)); engine.step()
""",
        UPDATE,
        model="Engine",
    ),
    Structure(
        "FSDP1 of one rank",
        """
from torch import distributed
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
model = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"), sharding_strategy=ShardingStrategy.NO_SHARD)
optimizer = torch.optim.AdamW(model.parameters())
"""
        + f"for _ in range(N):\n    {STEP}\n",
        UPDATE,
        compiles=True,
    ),
    Structure(
        "pipeline stages with one optimizer",
        """
first, second = nn.Linear(8, 16), nn.Linear(16, 4)
optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()])
for _ in range(N):
    x, y = batch(); F.cross_entropy(second(first(x).relu()), y).backward(); optimizer.step(); optimizer.zero_grad()
""",
        UPDATE,
        model="Linear + Linear",
    ),
    Structure(
        "encoder and predictor with two optimizers",
        """
encoder, predictor = Net(), nn.Linear(4, 4)
optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (encoder, predictor)]
for _ in range(N):
    x, y = batch(); F.cross_entropy(predictor(encoder(x)), y).backward()
    for optimizer in optimizers: optimizer.step(); optimizer.zero_grad()
""",
        UPDATE,
        model="Net + Linear",
    ),
    Structure(
        "gradients by `torch.func`",
        """
model = Net(); weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
optimizer = torch.optim.SGD(weights.values(), lr=0.1)
def loss_of(weights, x, y): return F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)
for _ in range(N):
    x, y = batch(); grads = torch.func.grad(loss_of)({k: w.detach() for k, w in weights.items()}, x, y)
    for name, weight in weights.items(): weight.grad = grads[name]
    optimizer.step()
""",
        UPDATE,
        phases=("forward", "optimizer"),
        compiles=True,
    ),
    Structure(
        "gradients by `torch.autograd.grad`",
        MODEL
        + """
for _ in range(N):
    x, y = batch(); grads = torch.autograd.grad(F.cross_entropy(model(x), y), [*model.parameters()])
    for p, grad in zip(model.parameters(), grads): p.grad = grad
    optimizer.step()
""",
        UPDATE,
        phases=("forward", "optimizer"),
    ),
    Structure(
        "an `autograd.Function` of the script",
        """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): ctx.save_for_backward(x); return x * x
    @staticmethod
    def backward(ctx, grad): return 2 * ctx.saved_tensors[0] * grad
"""
        + MODEL
        + "for _ in range(N):\n    x, y = batch(); F.cross_entropy(Square.apply(model(x)), y).backward()"
        "; optimizer.step(); optimizer.zero_grad()\n",
        UPDATE,
    ),
    Structure(
        "two optimizers for parts of one model",
        """
model = Net(); optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.inner, model.outer)]
for _ in range(N):
    x, y = batch(); F.cross_entropy(model(x), y).backward()
    for optimizer in optimizers: optimizer.step(); optimizer.zero_grad()
""",
        UPDATE,
    ),
    Structure(
        "one optimizer after another",
        """
model = Net(); head = torch.optim.SGD(model.outer.parameters(), lr=0.1)
for _ in range(2):
    x, y = batch(); F.cross_entropy(model(x), y).backward(); head.step(); head.zero_grad()
optimizer = torch.optim.AdamW(model.parameters())
"""
        + f"for _ in range(N):\n    {STEP}\n",
        UPDATE,
    ),
    Structure(
        "an optimizer for each batch (adversarial inputs)",
        MODEL
        + """
for _ in range(N):
    x, y = batch(); change = torch.zeros_like(x, requires_grad=True); attack = torch.optim.SGD([change], lr=0.1)
    for _ in range(2): attack.zero_grad(); (-F.cross_entropy(model(x + change), y)).backward(); attack.step()
    optimizer.zero_grad(); F.cross_entropy(model(x + change.detach()), y).backward(); optimizer.step()
""",
        UPDATE,
        batch=18,
    ),
    Structure(
        "several short runs, each with a model and an optimizer",
        """
for _ in range(N):
    model = Net(); optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        x, y = batch(); F.cross_entropy(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
""",
        UPDATE,
        batch=0,
    ),
    Structure(
        "a GAN with two optimizers",
        """
maker, judge = Net(), nn.Linear(4, 1)
optimizers = [torch.optim.Adam(part.parameters()) for part in (judge, maker)]
for _ in range(N):
    x, _ = batch(); made = maker(x)
    optimizers[0].zero_grad(); (judge(made.detach()).mean() - judge(torch.randn(6, 4)).mean()).backward()
    optimizers[0].step(); optimizers[1].zero_grad(); (-judge(made).mean()).backward(); optimizers[1].step()
""",
        UPDATE,
        model="Net + Linear",
        batch=0,
    ),
    Structure(
        "a model called by its methods, such as `model.forward`",
        """
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = nn.Linear(8, 4), nn.Linear(8, 1)
    @torch.no_grad()
    def act(self, x):
        return torch.distributions.Categorical(logits=self.actor(x)).sample()
    def evaluate(self, x, y):
        return F.cross_entropy(self.actor(x), y) + self.critic(x).mean()
model = Agent(); optimizer = torch.optim.AdamW(model.parameters())
for _ in range(N):
    for _ in range(5): model.act(torch.randn(1, 8))
    x, y = batch(); optimizer.zero_grad(); model.evaluate(x, y).backward(); optimizer.step()
assert Agent.act is vars(Agent)["act"] and not hasattr(Agent.evaluate, "__wrapped__")
""",
        UPDATE,
        model="Agent",
        phases=("evaluation", "forward", "backward", "optimizer", "zero_grad"),
    ),
    Structure(
        "GRPO: text is generated, then trained on",
        """
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 8), nn.Linear(8, 10)
    def forward(self, x):
        return self.head(self.embed(x))
    @torch.no_grad()
    def generate(self, x):
        for _ in range(4): x = torch.cat((x, self.infer(x[:, -1:] if x.shape[1] > 3 else x)), 1)
        return x
    def infer(self, x):
        return self.head(self.embed(x))[:, -1].argmax(1, keepdim=True)
model = Policy(); optimizer = torch.optim.AdamW(model.parameters())
for _ in range(N):
    x = model.generate(torch.randint(0, 10, (6, 3)))
    for part in x.split(2): F.cross_entropy(model.forward(part).transpose(1, 2), part).backward()
    optimizer.step(); optimizer.zero_grad()
""",
        UPDATE,
        model="Policy",
        phases=("forward", "backward", "optimizer"),
    ),
    Structure(
        "Q-learning with calls that backward does not reach",
        MODEL
        + """
target = copy.deepcopy(model)
for _ in range(N):
    for _ in range(5): model(torch.randn(1, 8)).argmax()
    x, y = batch()
    with torch.no_grad(): best = target(x).max(1).values
    loss = F.mse_loss(best, model(x).gather(1, y[:, None]).squeeze()); optimizer.zero_grad()
    loss.backward(); optimizer.step()
""",
        UPDATE,
    ),
    Structure(
        "the sequence first, with `batch_first` off",
        """
class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(10, 8), nn.LSTM(8, 8), nn.Linear(8, 10)
    def forward(self, x):
        return self.head(self.lstm(self.embed(x))[0])
model = Text(); optimizer = torch.optim.AdamW(model.parameters())
for _ in range(N):
    x = torch.randint(0, 10, (7, 6)); optimizer.zero_grad()
    F.cross_entropy(model(x).transpose(1, 2), x).backward(); optimizer.step()
""",
        UPDATE,
        model="Text",
    ),
    Structure(
        "a loss module that calls a part",
        MODEL
        + """
criterion = nn.CrossEntropyLoss()
for _ in range(N):
    x, y = batch(); criterion(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
""",
        UPDATE,
        phases=("forward", "loss", "backward", "optimizer"),
    ),
    Structure(
        "the loop runs on a thread",
        MODEL
        + f"""
def train():
    for _ in range(N):
        {STEP}
thread = threading.Thread(target=train); thread.start(); thread.join()
""",
        UPDATE,
    ),
    Structure(
        "a batch from another thread",
        MODEL
        + """
import queue
batches = queue.Queue(4)
threading.Thread(target=lambda: [batches.put(batch()) for _ in range(N)], daemon=True).start()
for _ in range(N):
    x, y = batches.get(); F.cross_entropy(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
""",
        UPDATE,
    ),
    Structure(
        "optimizer steps inside backward",
        """
model = Net(); made = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
def update(p): made[p].step(); made[p].zero_grad()
for p in model.parameters(): p.register_post_accumulate_grad_hook(update)
for _ in range(N):
    x, y = batch(); F.cross_entropy(model(x), y).backward()
""",
        UPDATE,
        phases=("forward", "backward"),
    ),
    Structure(
        "activation checkpointing",
        """
from torch.utils.checkpoint import checkpoint
class Kept(Net):
    def forward(self, x): return self.outer(checkpoint(self.inner, x, use_reentrant=False))
model = Kept(); optimizer = torch.optim.AdamW(model.parameters())
"""
        + f"for _ in range(N):\n    {STEP}\n",
        UPDATE,
        model="Kept",
        compiles=True,
    ),
    Structure(
        "reentrant checkpointing of one of two models",
        """
from torch.utils.checkpoint import checkpoint
first, second = Net(), nn.Linear(4, 4)
optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()])
for _ in range(N):
    x, y = batch(); hidden = checkpoint(first, x.requires_grad_(), use_reentrant=True)
    F.cross_entropy(second(hidden), y).backward(); optimizer.step(); optimizer.zero_grad()
""",
        UPDATE,
        model="Net + Linear",
    ),
    Structure(
        "objects of the script between two models",
        """
class Graph:
    def __init__(self, x): self.x = x
class Encoder(Net):
    def forward(self, graph): return Graph(super().forward(graph.x))
class Head(nn.Linear):
    def forward(self, graph): return super().forward(graph.x)
first, second = Encoder(), Head(4, 4)
optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()])
for _ in range(N):
    x, y = batch(); F.cross_entropy(second(first(Graph(x))), y).backward(); optimizer.step(); optimizer.zero_grad()
""",
        UPDATE,
        model="Encoder + Head",
    ),
    Structure(
        "SAM, an optimizer that wraps another",
        """
class SAM(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {}); self.inner = torch.optim.SGD(self.param_groups, lr=0.1)
    def first_step(self):
        with torch.no_grad():
            for p in self.param_groups[0]["params"]: self.state[p]["kept"] = p.clone(); p += p.grad; p.grad = None
    def second_step(self):
        with torch.no_grad():
            for p in self.param_groups[0]["params"]: p.copy_(self.state[p]["kept"])
        self.inner.step(); self.zero_grad()
model = Net(); optimizer = SAM(model.parameters())
for _ in range(N):
    x, y = batch()
    for update in (optimizer.first_step, optimizer.second_step): F.cross_entropy(model(x), y).backward(); update()
""",
        UPDATE,
        batch=12,
    ),
    Structure(
        "a model of TorchScript",
        MODEL.replace("Net()", "torch.jit.script(Net())") + f"for _ in range(N):\n    {STEP}\n",
        UPDATE,
    ),
    Structure(
        "diffusion, with a frozen model in the loss",
        """
class Diffuser(Net):
    def forward(self, time, x): return super().forward(x * time)
model = Diffuser(); optimizer = torch.optim.AdamW(model.parameters()); judge = nn.Linear(4, 4).requires_grad_(False)
for _ in range(N):
    x, y = batch(); F.cross_entropy(judge(model(torch.rand(1), x)), y).backward()
    optimizer.step(); optimizer.zero_grad()
""",
        UPDATE,
        model="Diffuser",
    ),
)
