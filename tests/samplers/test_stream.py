"""CandidateStream: order, determinism, the bound on work ahead, errors and shutdown."""

import signal
import threading
import time

import pytest
import torch

import softq
from softq.errors import SamplerError
from softq.samplers import CandidateStream, NgramReplacement


def threads():
    return [
        thread for thread in threading.enumerate() if thread.name.startswith("softq-candidates")
    ]


def batches(count=12):
    g = torch.Generator().manual_seed(0)
    return [torch.randint(5, 100, (4, 6), generator=g) for _ in range(count)]


SAMPLER = NgramReplacement(100, size=10)


def prepare(refs, generator):
    time.sleep(
        0.01 * float(torch.rand((), generator=torch.Generator().manual_seed(int(refs.sum()))))
    )  # finish out of order
    cands = SAMPLER(refs, generator=generator).measure("set", 5, generator=generator)
    return softq.raml(cands, refs, 0.5, softq.rewards.SentenceBLEU())


def collect(workers, seed=1):
    with CandidateStream(batches(), prepare, seed=seed, workers=workers, ahead=5) as stream:
        return [(target.outputs.tokens, target.weights) for target in stream]


def test_the_same_for_any_number_of_workers():
    one, four, other = collect(1), collect(4), collect(2, seed=2)
    assert len(one) == len(four) == 12
    for (a, v), (b, w) in zip(one, four, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(v, w)
    assert any(not torch.equal(a, b) for (a, _), (b, _) in zip(one, other, strict=True))
    assert not threads()


def test_batches_come_in_order_and_each_has_its_own_randomness():
    with CandidateStream(
        range(20), lambda i, g: (i, int(torch.randint(1 << 60, (), generator=g))), seed=3, workers=4
    ) as stream:
        made = list(stream)
    assert [i for i, _ in made] == list(range(20))
    assert len({value for _, value in made}) == 20


def test_work_ahead_is_bounded():
    begun = []
    stream = CandidateStream(
        range(100), lambda i, g: begun.append(i) or i, seed=0, workers=2, ahead=3
    )
    for expected in range(5):
        assert next(stream) == expected
        time.sleep(0.05)
        assert len(begun) <= expected + 1 + 3
    stream.close()
    assert list(stream) == []
    assert not threads()


def test_an_error_comes_in_its_turn_and_ends_the_threads():
    def fail_at_three(i, generator):
        if i == 3:
            raise ValueError("example 3 is bad")
        return i

    stream = CandidateStream(range(50), fail_at_three, seed=0, workers=3, ahead=8)
    assert [next(stream) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="example 3 is bad"):
        next(stream)
    assert not threads()
    assert list(stream) == []


def test_an_error_of_the_source_waits_for_the_batches_before_it():
    def source():
        yield from range(4)
        raise OSError("line 5 is broken")

    seen = []
    with (
        CandidateStream(source(), lambda i, g: i, seed=0, ahead=10) as stream,
        pytest.raises(OSError, match="line 5"),
    ):
        seen.extend(stream)
    with pytest.raises(StopIteration):
        next(stream)
    stream = CandidateStream(source(), lambda i, g: i, seed=0, ahead=10)
    assert [next(stream) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(OSError, match="line 5"):
        next(stream)
    assert not threads()


def test_a_stop_inside_prepare_is_not_the_end():
    empty = iter(())
    stream = CandidateStream(range(5), lambda i, g: next(empty) if i == 2 else i, seed=0)
    assert [next(stream), next(stream)] == [0, 1]
    with pytest.raises(RuntimeError, match="prepare raised StopIteration"):
        next(stream)
    assert not threads()


@pytest.fixture
def interruptible():
    """Ctrl-C as in a terminal: a parent such as nohup may have had it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_signal_while_waiting_ends_the_threads():
    """Ctrl-C reaches the main thread while it waits for a batch, or anywhere else in the loop."""

    def slow(i, generator):
        if i == 1:
            signal.raise_signal(signal.SIGINT)  # handled in the main thread
            time.sleep(0.2)
        return i

    with (
        pytest.raises(KeyboardInterrupt),
        CandidateStream(range(100), slow, seed=0, workers=2) as stream,
    ):
        list(stream)
    deadline = (
        time.monotonic() + 10
    )  # a signal that comes while the pool starts a thread keeps it from being waited for, not from ending
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not threads()


def test_leaving_early_and_ctrl_c_end_the_threads():
    with CandidateStream(range(1000), lambda i, g: i, seed=0, workers=2) as stream:
        assert next(stream) == 0
    assert not threads()

    def interrupted(i, generator):
        raise KeyboardInterrupt

    stream = CandidateStream(range(1000), interrupted, seed=0)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert not threads()


def test_preparation_runs_beside_the_loop():
    """What is prepared while the caller is busy is there at once."""
    done = threading.Event()
    with CandidateStream(
        range(2), lambda i, g: done.set() if i == 1 else i, seed=0, ahead=2
    ) as stream:
        next(stream)
        assert done.wait(10)


@pytest.mark.parametrize("options", [{"workers": 0}, {"ahead": 0}, {"workers": True}])
def test_bad_options(options):
    with pytest.raises(SamplerError, match="must be a whole number from 1"):
        CandidateStream([], prepare, seed=0, **options)


def test_workers_work_alone_and_other_threads_do_not():
    before, seen = torch.get_num_threads(), []
    with CandidateStream(
        range(4), lambda i, g: torch.get_num_threads(), seed=0, workers=2
    ) as stream:
        assert list(stream) == [1] * 4
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert [torch.get_num_threads(), *seen] == [before, before]
