"""What the picker of the home page offers and no recording has: the nearest step, and memory predicted for it."""

from profiler_job.analysis.pages import home_cases, unmeasured_cases
from profiler_job.analysis.pages.home_cases import BF16, FP32, CaseNumbers, HomeCase
from profiler_job.analysis.site.page_context import NOTHING, make_site
from tests.synthetic import recording

H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"


def make_case(model, parameters, context, gpu=H200, batch=4):
    at = (model, f"{context:,}", str(batch), gpu.split()[1])
    numbers = CaseNumbers(parameters, context, batch, gpu)
    return HomeCase(at=at, numbers=numbers, runs={BF16: (0, "a")}, others={}, apart=0.0)


LARGE, XL = ("large (0.97B)", 969_411_840), ("xl (2.0B)", 1_998_235_200)
CASES = [make_case(*LARGE, 512), make_case(*LARGE, 1024), make_case(*XL, 1024), make_case(*LARGE, 1024, H100)]


def find(*wanted):
    return unmeasured_cases.find_nearest(CASES, *wanted).at


def test_the_nearest_step_is_by_parameters_then_context_then_batch_then_gpu():
    """The picker showed the first of those that shared most values: another model before another context."""
    assert find("1.3B", CaseNumbers(1.3e9, 2048, 4, H200)) == ("large (0.97B)", "1,024", "4", "H200")
    assert find("1.5B", CaseNumbers(1.5e9, 512, 4, H200)) == ("xl (2.0B)", "1,024", "4", "H200")
    assert find("large (0.97B)", CaseNumbers(LARGE[1], 600, 4, H200)) == ("large (0.97B)", "512", "4", "H200")
    assert find("large (0.97B)", CaseNumbers(LARGE[1], 1024, 8, H100)) == ("large (0.97B)", "1,024", "4", "H100")


def test_a_model_without_known_parameters_is_nearest_to_itself():
    cases = [make_case("large (0.97B)", LARGE[1], 512), make_case("mine", 0, 128)]
    assert unmeasured_cases.find_nearest(cases, "mine", CaseNumbers(0, 512, 4, H200)).at[0] == "mine"


def test_a_model_between_two_measured_ones_is_offered_with_predicted_memory():
    models = unmeasured_cases.list_models(CASES, is_training=True)
    assert [*models] == ["large (0.97B)", "1.3B", "xl (2.0B)"]
    found = {one.at: one for one in unmeasured_cases.list_unmeasured(CASES, models, is_training=True)}
    one = found["1.3B", "1,024", "4", "H100"]
    assert one.nearest.at == ("large (0.97B)", "1,024", "4", "H100")
    assert one.differs == ("model",)
    assert {state: round(need.peak_bytes / 2**30) for state, need in one.memory.items()} == {FP32: 44, BF16: 29}
    assert all(need.fits for need in one.memory.values())
    assert [case.at[0] for case in found["1.3B", "1,024", "4", "H200"].around] == [LARGE[0], XL[0]]
    of_xl = found["xl (2.0B)", "512", "4", "H200"]
    assert of_xl.nearest.at[1] == "1,024" and not of_xl.memory and not of_xl.around and of_xl.size == "xl"
    assert not {*found} & {case.at for case in CASES}


def test_what_needs_more_than_the_gpu_has_does_not_fit():
    cases = [*CASES, make_case(*LARGE, 4096)]
    models = unmeasured_cases.list_models(cases, is_training=True)
    found = {one.at: one for one in unmeasured_cases.list_unmeasured(cases, models, is_training=True)}
    fits = {gpu: found["1.3B", "4,096", "4", gpu].memory[FP32].fits for gpu in ("H100", "H200")}
    assert fits == {"H100": False, "H200": False}
    assert found["1.3B", "4,096", "4", "H100"].memory[BF16].fits


def test_a_model_that_was_measured_is_no_longer_predicted():
    cases = [*CASES, make_case("1.3B", 1_255_311_360, 2048)]
    models = unmeasured_cases.list_models(cases, is_training=True)
    found = [*unmeasured_cases.list_unmeasured(cases, models, is_training=True)]
    assert [*models].count("1.3B") == 1 and not any(one.memory for one in found)


def test_forward_passes_have_no_predicted_models():
    assert [*unmeasured_cases.list_models(CASES, is_training=False)] == [LARGE[0], XL[0]]
    cases = home_cases.list_cases([recording(("small", "medium"), (128, 512))])
    models = unmeasured_cases.list_models(cases, is_training=True)
    assert len(models) == 2 and not [*unmeasured_cases.list_unmeasured(cases, models, is_training=True)]


def test_the_choices_are_named_that_the_nearest_case_has_another_of(tmp_path):
    """A note said `0.062x the batch`."""
    cases = [make_case("mine", 0, 128), make_case("mine", 0, 256), make_case("other", 0, 128)]
    models = unmeasured_cases.list_models(cases, is_training=True)
    [one] = unmeasured_cases.list_unmeasured(cases, models, is_training=True)
    assert one.nearest.at[0] == "other" and one.differs == ("context",)
    html = make_site(recording(("small",), (128,)), tmp_path).render_part(
        "index.md", "home_unmeasured.html", NOTHING, one=one, around=[]
    )
    assert "another context" in html
