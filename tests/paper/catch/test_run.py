"""One agent that learns Catch: found again, watched as it plays."""

import pytest
from PIL import Image

from fastweights import cli
from fastweights.paper.catch import run as agents
from fastweights.paper.catch.run import Catch
from fastweights.training import a3c
from fastweights.training.runs import RunFolder

SHORT = a3c.Recipe(lr=1e-3, frames=2_000, num_envs=4, rollout=5, optimizer="adam")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("catch")
    agents.train(Catch(size=6, visible=2, training=SHORT), path, "the command")
    return RunFolder(path)


def test_a_run_is_found_again(trained):
    assert agents.load_config(trained) == Catch(size=6, visible=2, training=SHORT)
    net = agents.load_net(trained)
    found = a3c.score(agents.load_config(trained), net, greedy=True, seed=1_000_000)
    assert found == trained.result["greedy_return"]


def test_an_episode_is_shown_as_it_was_played(trained):
    episodes = [agents.play(trained, seed) for seed in range(8)]
    for screens, seen, attention, total in episodes:
        assert len(screens) == len(seen) == 6
        assert seen[:2] == screens[:2]
        assert not any(pixel for frame in seen[2:] for row in frame for pixel in row)
        columns = [frame[row].index(1) for row, frame in enumerate(screens[:-1])]
        assert len(set(columns)) == 1  # the ball falls straight
        caught = sum(screens[-1][-1]) == 2
        assert total == (1 if caught else -1)
        assert (len(attention), len(attention[0])) == (5, 5)
        assert attention[0] == [0] * 5
        assert any(attention[4])
    assert {episode.total for episode in episodes} == {1.0, -1.0}


def test_an_agent_that_sees_its_last_action_is_shown_the_same(tmp_path):
    agents.train(Catch(size=6, visible=2, last_action=True, training=SHORT), tmp_path, "the command")
    screens, seen, attention, _ = agents.play(RunFolder(tmp_path), 0)
    assert seen[:2] == screens[:2]
    assert not any(pixel for frame in seen[2:] for row in frame for pixel in row)
    assert len(attention) == 5


def test_it_is_watched_frame_by_frame_in_a_file(trained, tmp_path, capsys):
    assert cli.run(["watch", str(trained.path), "--episodes", "2", "--out", str(tmp_path / "game.gif")]) == 0
    printed = capsys.readouterr().out
    assert "game 2 of 2, frame 6 of 6: " in printed
    with Image.open(tmp_path / "game.gif") as gif:
        assert gif.n_frames == 12
        assert gif.width >= 600


@pytest.mark.parametrize(
    ("hyperparameters", "message"),
    [
        ({"size": 2}, "size must be at least 3"),
        ({"visible": 17}, "visible must be from 1 to 16"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"input_range": -0.1}, "input_range must be at least 0 and finite"),
        ({"recurrent_init": float("nan")}, "recurrent_init must be at least 0 and finite, got nan"),
        ({"core": "lstm", "recurrent_init": 1.0}, "recurrent_init must be 0 for an LSTM"),
    ],
)
def test_bad_hyperparameters(hyperparameters, message):
    with pytest.raises(ValueError, match=message):
        Catch(**hyperparameters)


def test_a_run_of_another_task(tmp_path):
    with RunFolder(tmp_path).opened({"task": "retrieval"}, "the command"):
        pass
    with pytest.raises(ValueError, match="is a run of 'retrieval', not of 'catch'"):
        agents.play(RunFolder(tmp_path), 0)
