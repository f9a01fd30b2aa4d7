"""One agent that learns Catch: found again, watched as it plays."""

import pytest
from PIL import Image

from fastweights.paper import agents
from fastweights.paper.agents import Catch
from fastweights.report import figures, terminal
from fastweights.training import a3c
from fastweights.training.runs import RunFolder

SHORT = a3c.Recipe(lr=1e-3, frames=2_000, games=4, steps=5, optimizer="adam")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("catch")
    agents.train(Catch(size=6, visible=2, training=SHORT), path, "the command")
    return RunFolder(path)


def test_a_run_is_found_again(trained):
    assert agents.load_config(trained) == Catch(size=6, visible=2, training=SHORT)
    net = agents.load_net(trained)
    found = a3c.score(agents.load_config(trained), net, greedy=True, seed=1_000_000)
    assert found == trained.result["greedy_reward"]


def test_an_episode_is_shown_as_it_was_played(trained):
    episodes = [agents.play(trained, seed) for seed in range(8)]
    for screens, seen, attention, reward in episodes:
        assert len(screens) == len(seen) == 6
        assert seen[:2] == screens[:2]
        assert not any(pixel for frame in seen[2:] for row in frame for pixel in row)
        columns = [frame[row].index(1) for row, frame in enumerate(screens[:-1])]
        assert len(set(columns)) == 1  # the ball falls straight
        caught = sum(screens[-1][-1]) == 2
        assert reward == (1 if caught else -1)
        assert (len(attention), len(attention[0])) == (5, 5)
        assert attention[0] == [0] * 5
        assert any(attention[4])
    assert {episode.reward for episode in episodes} == {1.0, -1.0}


def test_an_agent_that_sees_its_last_action_is_shown_the_same(tmp_path):
    agents.train(Catch(size=6, visible=2, last_action=True, training=SHORT), tmp_path, "the command")
    screens, seen, attention, _ = agents.play(RunFolder(tmp_path), 0)
    assert seen[:2] == screens[:2]
    assert not any(pixel for frame in seen[2:] for row in frame for pixel in row)
    assert len(attention) == 5


def test_a_film_and_a_picture_of_a_game(trained, tmp_path):
    episode = agents.play(trained, 3)
    with Image.open(figures.film([episode], tmp_path / "game.gif")) as gif:
        assert gif.n_frames >= 6
    text = terminal.game(episode.screens, episode.seen, episode.reward).plain.splitlines()
    assert [len(line) for line in text[:6]] == [6] * 6
    assert text[0].count("o") == 1
    assert text[-1] in ("+1", "-1")


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"size": 2}, "size must be at least 3"),
        ({"visible": 17}, "visible must be from 1 to 16"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"input_range": -0.1}, "input_range must be at least 0 and finite"),
        ({"identity": float("nan")}, "identity must be at least 0 and finite, got nan"),
        ({"core": "lstm", "identity": 1.0}, "identity must be 0 for an LSTM"),
    ],
)
def test_bad_knobs(knobs, message):
    with pytest.raises(ValueError, match=message):
        Catch(**knobs)


def test_a_run_of_another_task(tmp_path):
    with RunFolder(tmp_path).opened({"task": "retrieval"}, "the command"):
        pass
    with pytest.raises(ValueError, match="is a run of 'retrieval', not of 'catch'"):
        agents.play(RunFolder(tmp_path), 0)
