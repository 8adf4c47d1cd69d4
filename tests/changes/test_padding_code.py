"""The patch that pads outputs of linear layers: where it is written, and that results stay the same."""

import pytest
import torch

from profiler_job.analysis.changes.patch import make_patch
from profiler_job.analysis.changes.script_code import Program
from tests.changes.test_patch import program_of, text_after


def test_outputs_are_padded_after_a_model_is_made():
    script = """
        import torch
        from torch import nn
        model = nn.Linear(8, 1033)
        model.train()
        for batch in batches:
            model(batch).sum().backward()
    """
    patch = make_patch(program_of(script), ["padding"])
    assert patch.is_full
    text = text_after(patch)
    assert "\n\n\nclass PaddedLinear(torch.nn.Linear):" in text and "\n\n\nmodel = nn.Linear(8, 1033)\n" in text
    assert "model = nn.Linear(8, 1033)\nmodel.apply(pad_outputs)\n" in text
    assert make_patch(Program(tuple(patch.files.values())), ["padding"]).present == {"padding": "train.py:6"}


def test_outputs_of_a_model_that_a_trainer_calls_are_padded():
    script = """
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model
        body = GPT2Model(GPT2Config())
        with torch.device("cuda"):
            model = GPT2LMHeadModel(GPT2Config()).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters())
    """
    patch = make_patch(program_of(script), ["padding"])
    assert patch.is_full and "    model.apply(pad_outputs)\n" in text_after(patch)
    assert text_after(patch).count(".apply(") == 1


def test_what_wraps_a_model_is_left_to_write():
    script = """
        import torch
        import transformers
        model = torch.compile(transformers.AutoModelForCausalLM.from_pretrained("gpt2"))
    """
    (line,) = make_patch(program_of(script), ["padding"]).to_write["padding"]
    assert (line.line, line.code) == (4, "model.resize_token_embeddings(pad_to_multiple_of=64, mean_resizing=False)")


RESIZED = "import transformers\nmodel = transformers.AutoModelForCausalLM.from_pretrained('gpt2')\n"


@pytest.mark.parametrize(
    "given",
    ["50304", "len(tokenizer), pad_to_multiple_of=64", "len(tokenizer), 8", "pad_to_multiple_of=16"],
)
def test_a_vocabulary_that_the_script_pads_is_left_alone(given):
    script = RESIZED + f"model.resize_token_embeddings({given})\n"
    assert make_patch(program_of(script), ["padding"]).present == {"padding": "train.py:3"}


@pytest.mark.parametrize(
    "given",
    ["len(tokenizer)", "50258", "len(tokenizer), pad_to_multiple_of=None", "len(tokenizer), pad_to_multiple_of=4", ""],
)
def test_a_vocabulary_that_is_resized_to_any_size_is_padded_then(given):
    """Such a script counted as padded. Resizing makes the layer anew, so that padding comes after it."""
    patch = make_patch(program_of(RESIZED + f"model.resize_token_embeddings({given})\n"), ["padding"])
    assert patch.is_full and not patch.present
    assert text_after(patch).endswith(f"\nmodel.resize_token_embeddings({given})\nmodel.apply(pad_outputs)\n")
    assert text_after(patch).count(".apply(") == 1


def test_a_vocabulary_that_is_resized_in_some_cases_is_padded_in_all():
    script = RESIZED + "if len(tokenizer) > 50257:\n    model.resize_token_embeddings(len(tokenizer))\n"
    text = text_after(make_patch(program_of(script), ["padding"]))
    assert "from_pretrained('gpt2')\nmodel.apply(pad_outputs)\nif len" in text
    assert text.endswith("(len(tokenizer))\n    model.apply(pad_outputs)\n")


def test_a_resized_model_of_another_name_is_left_to_write():
    script = RESIZED + "def extend(given):\n    given.resize_token_embeddings(len(tokenizer))\n"
    (line,) = make_patch(program_of(script), ["padding"]).to_write["padding"]
    code = "given.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=64, mean_resizing=False)"
    assert (line.line, line.code) == (4, code)


SAVING = """
import copy
import torch
from torch import nn
torch.manual_seed(0)

class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, ids):
        return self.module(ids)

def unwrap(model):
    return getattr(model, "module", model)

def save(given):
    global kept
    kept = given

model = WRAP(nn.Sequential(nn.Embedding(1033, 16), nn.Linear(16, 1033)))
for _ in range(2):
    ids = torch.randint(0, 1033, (2, 16))
    nn.functional.cross_entropy(model(ids).view(-1, 1033), ids.view(-1)).backward()
save(SAVED)
"""


@pytest.mark.parametrize(
    ("wrap", "saved"),
    [
        ("", "model"),
        ("", "{'model': model, 'step': 3}"),
        ("", "copy.deepcopy(model)"),
        ("", "model.state_dict()"),
        ("Wrapper", "unwrap(model)"),
        ("Wrapper", "unwrap(model).state_dict()"),
        ("Wrapper", "model.module"),
        ("Wrapper", "model.module.state_dict()"),
        ("torch.compile", "model._orig_mod"),
        ("torch.compile", "model._orig_mod.state_dict()"),
    ],
)
def test_a_saved_model_has_the_rows_and_the_layers_that_it_had(wrap, saved, tmp_path):
    """A model that was saved itself named `__main__.PaddedLinear`, which no other script can load."""
    program = program_of(SAVING.replace("WRAP(", f"{wrap}(").replace("SAVED", saved))
    patch = make_patch(program, ["padding"])
    assert patch.is_full
    names: dict = {"__name__": "__main__"}
    with torch.compiler.set_stance("force_eager"):
        exec(text_after(patch), names)
    assert any(type(part).__name__ == "PaddedLinear" for part in names["model"].modules())
    torch.save(names["kept"], tmp_path / "model.pt")
    kept = torch.load(tmp_path / "model.pt", weights_only=False)
    kept = kept["model"] if "step" in kept else kept
    layers = kept if isinstance(kept, dict) else kept.state_dict()
    assert layers["1.weight"].shape == (1033, 16)
    assert isinstance(kept, dict) or [type(part) for part in kept] == [torch.nn.Embedding, torch.nn.Linear]


PADDED = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1033, 16)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(16, 1033, bias=BIAS)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        logits = self.head(self.drop(self.embed(ids)))
        assert logits.shape[-1] == 1033
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), ids.view(-1))

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for step in range(5):
    ids = torch.randint(0, 1033, (2, 16))
    loss = model(ids)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
kept = model.state_dict()
"""
SMALL_GPT2 = """
import torch
import transformers
torch.manual_seed(0)
size = dict(n_embd=32, n_layer=1, n_head=2, n_positions=16)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size)).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for _ in range(5):
    ids = torch.randint(0, 50257, (2, 16))
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
kept = model.state_dict()
"""


@pytest.mark.parametrize(
    "source",
    [
        PADDED.replace("BIAS", "True"),
        PADDED.replace("BIAS", "False"),
        pytest.param(SMALL_GPT2, marks=pytest.mark.long),
    ],
)
def test_a_padded_model_has_the_losses_and_the_checkpoint_that_it_had(source):
    """No padded logit is in the loss: with 47 more tokens in 50257 it would differ by 0.0001."""
    program = program_of(source)
    patch = make_patch(program, ["padding"])
    assert patch.is_full
    results = []
    for text in (program.script.text, text_after(patch)):
        names: dict = {}
        exec(text, names)
        results.append(names)
    before, after = results
    assert after["losses"] == pytest.approx(before["losses"], rel=1e-6)
    assert any(type(part).__name__ == "PaddedLinear" for part in after["model"].modules())
    for name, value in before["kept"].items():
        assert after["kept"][name].shape == value.shape and torch.allclose(after["kept"][name], value, atol=1e-5)


def test_an_own_vocabulary_without_a_training_step_is_left_to_write():
    patch = make_patch(program_of("config = dict(vocab_size=50257)\nn = 50257\nvocab_size: int = 64\n"), ["padding"])
    ((line,),) = patch.to_write.values()
    assert (line.line, line.code) == (1, "vocab_size=50304") and not patch.diff
