"""Catch plays by the paper's rules, one game or many at once, and goes black when it should."""

from collections import Counter
from itertools import product

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hypothesis import given
from hypothesis import strategies as st

from fastweights.tasks import catch
from fastweights.tasks.catch import Catch, CatchVector, ShowLastAction, optimal_score, random_score

LEFT, STAY, RIGHT = range(3)


def begin(ball, paddle, size=4, visible=4, **arguments):
    """A game whose start is not left to chance."""
    game = Catch(size, visible, **arguments)
    game.reset(seed=0)
    game.ball, game.paddle = ball, paddle
    return game


def picture(size, frame, ball, paddle):
    screen = np.zeros((size, size), np.float32)
    screen[frame - 1, ball] = screen[size - 1, paddle] = screen[size - 1, paddle + 1] = 1
    return screen


def rows(screen):
    assert set(np.unique(screen)) <= {0, 1}
    return ["".join(".#"[int(pixel)] for pixel in row) for row in screen]


@pytest.fixture
def no_pauses(monkeypatch):
    pauses = []
    monkeypatch.setattr(catch.time, "sleep", pauses.append)
    return pauses


def test_a_game_by_hand():
    game = begin(ball=3, paddle=0)
    screen, *rest = game.step(RIGHT)
    assert rows(screen) == ["....", "...#", "....", ".##."]
    assert rest == [0, False, False, {}]
    screen, *rest = game.step(STAY)
    assert rows(screen) == ["....", "....", "...#", ".##."]
    assert rest == [0, False, False, {}]
    screen, *rest = game.step(RIGHT)
    assert rows(screen) == ["....", "....", "....", "..##"]
    assert rest == [1, True, False, {}]


def test_a_lost_game_by_hand():
    game = begin(ball=0, paddle=1)
    game.step(STAY)
    screen, *rest = game.step(LEFT)
    assert rows(screen) == ["....", "....", "#...", "##.."]
    screen, *rest = game.step(RIGHT)
    assert rows(screen) == ["....", "....", "....", "###."]
    assert rest == [-1, True, False, {}]


@pytest.mark.parametrize("size", [3, 4, 9])
def test_the_first_frame_shows_the_start(size):
    game = Catch(size, 1)
    for seed in range(20):
        screen, info = game.reset(seed=seed)
        assert np.array_equal(screen, picture(size, 1, game.ball, game.paddle))
        assert (screen.dtype, info) == (np.float32, {})


@pytest.mark.parametrize(("size", "visible"), [(16, 3), (24, 5), (5, 1), (5, 4), (5, 5), (3, 2)])
def test_the_screen_is_black_after_the_visible_frames(size, visible):
    game = Catch(size, visible)
    screens = [game.reset(seed=0)[0]]
    while len(screens) < size:
        screens.append(game.step(STAY)[0])
    for frame, screen in enumerate(screens, 1):
        expected = picture(size, frame, game.ball, game.paddle) if frame <= visible else np.zeros((size, size))
        assert np.array_equal(screen, expected), frame


def test_the_paddle_stops_at_the_walls():
    game = begin(ball=0, paddle=1, size=6, visible=6)
    assert [rows(game.step(LEFT)[0])[-1] for _ in range(3)] == ["##...."] * 3
    assert rows(game.step(RIGHT)[0])[-1] == ".##..."
    game = begin(ball=0, paddle=3, size=6, visible=6)
    assert [rows(game.step(RIGHT)[0])[-1] for _ in range(3)] == ["....##"] * 3
    assert rows(game.step(LEFT)[0])[-1] == "...##."


@pytest.mark.parametrize("ball", range(5))
@pytest.mark.parametrize("paddle", range(4))
def test_both_pixels_of_the_paddle_catch_and_no_other(ball, paddle):
    game = begin(ball, paddle, size=5, visible=2)
    rewards = [game.step(STAY)[1:3] for _ in range(4)]
    assert rewards == [(0, False)] * 3 + [(1 if ball in (paddle, paddle + 1) else -1, True)]


def starts_of_catch(count, **arguments):
    game = Catch(**arguments)
    for seed in [0] + [None] * (count - 1):
        game.reset(seed=seed)
        yield game.ball, game.paddle


def starts_of_catch_vector(count, **arguments):
    games = CatchVector(count, **arguments)
    games.reset(seed=0)
    yield from zip(games.ball.tolist(), games.paddle.tolist(), strict=True)


@pytest.mark.parametrize("starts_of", [starts_of_catch, starts_of_catch_vector])
def test_every_start_is_as_likely(starts_of):
    counts = Counter(starts_of(6000, size=4))
    assert set(counts) == set(product(range(4), range(3)))
    assert all(count == pytest.approx(500, rel=0.25) for count in counts.values())


@pytest.mark.parametrize("starts_of", [starts_of_catch, starts_of_catch_vector])
@pytest.mark.parametrize(("size", "centre"), [(3, 0), (4, 1), (5, 1), (16, 7)])
def test_the_paddle_may_start_in_the_centre(starts_of, size, centre):
    counts = Counter(starts_of(50 * size, size=size, paddle_start="centre"))
    assert set(counts) == set(product(range(size), [centre]))


@pytest.mark.parametrize("make", [lambda: Catch(9, 4), lambda: CatchVector(3, 9, 4)])
def test_a_seed_says_how_all_games_start(make):
    def first_frames(seed):
        game = make()
        return np.stack([game.reset(seed=seed)[0]] + [game.reset()[0] for _ in range(5)])

    assert np.array_equal(first_frames(1), first_frames(1))
    assert not np.array_equal(first_frames(1), first_frames(2))


def test_autoreset_draws_from_the_seed():
    def play():
        games = CatchVector(5, 4, 1)
        games.reset(seed=3)
        return np.stack([games.step(np.full(5, STAY))[0] for _ in range(12)])

    assert np.array_equal(play(), play())


@pytest.mark.parametrize("arguments", [{}, {"size": 24, "visible": 5}, {"size": 3, "paddle_start": "centre"}])
@pytest.mark.usefixtures("no_pauses")
def test_gymnasium_has_nothing_to_say_against_it(arguments):
    check_env(gymnasium.make("fastweights/Catch-v0", **arguments).unwrapped)


@given(st.data())
def test_many_games_at_once_are_single_games(data):
    size = data.draw(st.integers(3, 9), "size")
    visible = data.draw(st.integers(1, size), "visible")
    count = data.draw(st.integers(1, 4), "count")
    paddle_start = data.draw(st.sampled_from(catch.PADDLE_STARTS), "paddle_start")
    random = np.random.default_rng(data.draw(st.integers(0, 2**32), "seed"))
    many = CatchVector(count, size, visible, paddle_start)
    screens, infos = many.reset(seed=int(random.integers(2**31)))
    assert infos == {}
    singles = [None] * count

    def check_starts(started):
        for i in started:
            singles[i] = begin(int(many.ball[i]), int(many.paddle[i]), size, visible)
            assert np.array_equal(screens[i], picture(size, 1, many.ball[i], many.paddle[i]))

    check_starts(range(count))
    for _ in range(3 * size):
        if random.random() < 0.1:
            mask = random.random(count) < 0.5
            shown = screens
            screens, infos = many.reset(options={"reset_mask": mask})
            assert infos == {}
            assert np.array_equal(screens[~mask], shown[~mask])
            check_starts(np.flatnonzero(mask))
        actions = random.integers(3, size=count)
        screens, rewards, terminated, truncated, infos = many.step(actions)
        expected = [single.step(action) for single, action in zip(singles, actions, strict=True)]
        assert rewards.tolist() == [reward for _, reward, *_ in expected]
        assert terminated.tolist() == [ended for _, _, ended, *_ in expected]
        assert not truncated.any()
        assert set(infos) == ({"final_obs", "_final_obs"} if terminated.any() else set())
        for i, (screen, _, ended, *_) in enumerate(expected):
            if ended:
                assert infos["_final_obs"][i]
                assert np.array_equal(infos["final_obs"][i], screen)
            else:
                assert np.array_equal(screens[i], screen)
                assert not infos or (infos["final_obs"][i] is None and not infos["_final_obs"][i])
        check_starts(np.flatnonzero(terminated))


@pytest.mark.parametrize("visible", [1, 3, 5])
def test_a_vector_of_one_game_is_as_gymnasium_would_make_it(visible):
    ours = CatchVector(1, 5, visible)
    theirs = SyncVectorEnv([lambda: Catch(5, visible)], autoreset_mode=AutoresetMode.SAME_STEP)
    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"]
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.single_action_space == theirs.single_action_space
    assert np.array_equal(ours.reset(seed=7)[0], theirs.reset(seed=7)[0])
    ends = 0
    for action in np.random.default_rng(0).integers(3, size=(100, 1)):
        *found, infos = ours.step(action)
        *expected, their_infos = theirs.step(action)
        for one, other in zip(found, expected, strict=True):
            assert np.array_equal(one, other)
        assert ("final_obs" in infos) == ("final_obs" in their_infos)
        if infos:
            ends += 1
            assert np.array_equal(infos["final_obs"][0], their_infos["final_obs"][0])
            assert np.array_equal(infos["_final_obs"], their_infos["_final_obs"])
    assert ends == 25


def test_observations_are_in_the_space_and_are_never_written_again():
    games = CatchVector(3, 4, 4)
    kept = [games.reset(seed=0)[0]]
    copies = [kept[0].copy()]
    for _ in range(8):
        kept.append(games.step(np.array([LEFT, STAY, RIGHT]))[0])
        copies.append(kept[-1].copy())
    for screens, copy in zip(kept, copies, strict=True):
        assert screens in games.observation_space
        assert np.array_equal(screens, copy)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_actions_of_any_integer_type(dtype):
    games = CatchVector(3, 6)
    games.reset(seed=0)
    games.paddle[:] = 2
    games.step(np.array([LEFT, STAY, RIGHT], dtype))
    assert games.paddle.tolist() == [1, 2, 3]
    if dtype != np.uint64:  # which Discrete(3) does not contain either
        game = begin(ball=0, paddle=0)
        game.step(dtype(LEFT))
        assert game.paddle == 0
        game.step(dtype(RIGHT))
        assert game.paddle == 1


def test_the_last_action_is_shown_beside_the_same_screens():
    plain, shown, moves = CatchVector(5, size=4), ShowLastAction(CatchVector(5, size=4)), np.random.default_rng(0)
    screens, _ = plain.reset(seed=3)
    with_action, _ = shown.reset(seed=3)
    last = np.zeros((5, 3), np.float32)
    for move in range(1, 8):
        np.testing.assert_array_equal(with_action, np.concatenate((screens.reshape(5, 16), last), 1))
        assert shown.observation_space.contains(with_action)
        actions = moves.integers(3, size=5)
        screens, rewards, ended, _, infos = plain.step(actions)
        with_action, same_rewards, same_ended, _, same_infos = shown.step(actions)
        np.testing.assert_array_equal(rewards, same_rewards)
        np.testing.assert_array_equal(ended, same_ended)
        assert ended.all() == (move % 3 == 0)
        acted = np.eye(3, dtype=np.float32)[actions]
        last = acted * ~ended[:, None]
        for game in np.flatnonzero(ended):
            final = np.concatenate((infos["final_obs"][game].flatten(), acted[game]))
            np.testing.assert_array_equal(same_infos["final_obs"][game], final)


def test_make():
    game = gymnasium.make("fastweights/Catch-v0", size=24, visible=5)
    screen, _ = game.reset(seed=0)
    assert screen.shape == (24, 24)
    assert (type(game.unwrapped), game.unwrapped.visible) == (Catch, 5)
    with pytest.raises(ResetNeeded):
        gymnasium.make("fastweights/Catch-v0").step(STAY)


@pytest.mark.parametrize(
    ("mode", "kind"), [(None, CatchVector), ("vector_entry_point", CatchVector), ("sync", SyncVectorEnv)]
)
def test_make_vec(mode, kind):
    arguments = {"size": 6, "visible": 2, "paddle_start": "centre"}
    games = gymnasium.make_vec("fastweights/Catch-v0", num_envs=8, vectorization_mode=mode, **arguments)
    assert type(games) is kind
    screens, _ = games.reset(seed=0)
    assert screens.shape == (8, 6, 6)
    assert (screens[:, -1] == [0, 0, 1, 1, 0, 0]).all()
    assert games.step(np.full(8, STAY))[0].sum() == 24
    assert games.step(np.full(8, STAY))[0].sum() == 0


def test_gymnasium_counts_the_games():
    games = RecordEpisodeStatistics(gymnasium.make_vec("fastweights/Catch-v0", num_envs=4, size=5))
    games.reset(seed=0)
    rewards = []
    for _ in range(8):
        _, reward, terminated, _, infos = games.step(np.full(4, STAY))
        rewards += reward[terminated].tolist()
    assert infos["episode"]["l"].tolist() == [4, 4, 4, 4]
    assert list(games.return_queue) == rewards
    assert len(rewards) == 8


def test_text():
    game = begin(ball=1, paddle=2, visible=2, render_mode="ansi")
    game.step(LEFT)
    assert game.render() == "frame 2 of 4\n....\n.o..\n....\n.==."
    game.step(RIGHT)
    assert game.render() == "frame 3 of 4, the agent sees nothing\n....\n....\n.o..\n..=="
    game.step(LEFT)
    assert game.render() == "frame 4 of 4, the agent sees nothing\n....\n....\n....\n.o=."


def test_images():
    game = begin(ball=1, paddle=2, visible=1, render_mode="rgb_array")
    seen = game.render()
    assert (seen.shape, seen.dtype) == ((64, 64, 3), np.uint8)
    small = seen[8::16, 8::16]
    assert np.array_equal(seen, np.kron(small, np.ones((16, 16, 1), np.uint8)))
    ball, paddle, background = small[0, 1], small[3, 2], small[0, 0]
    kinds = [["background"] * 4 for _ in range(4)]
    kinds[0][1], kinds[3][2], kinds[3][3] = "ball", "paddle", "paddle"
    colours = {"ball": ball, "paddle": paddle, "background": background}
    assert len({tuple(colour.tolist()) for colour in colours.values()}) == 3
    assert np.array_equal(small, [[colours[kind] for kind in row] for row in kinds])
    game.step(STAY)
    unseen = game.render()[8::16, 8::16]
    for bright, dark in ((ball, unseen[1, 1]), (paddle, unseen[3, 2]), (background, unseen[0, 0])):
        assert 0 < dark.sum() < 0.5 * bright.sum()
    assert not np.array_equal(unseen[1, 1], unseen[3, 2])


def test_people_see_every_frame_in_the_terminal(capsys, no_pauses):
    game = Catch(3, 1, render_mode="human")
    game.reset(seed=0)
    while not game.step(STAY)[2]:
        pass
    frames = capsys.readouterr().out.split("\x1b[H\x1b[2J")
    assert [frame.split("\n")[0] for frame in frames] == [
        "",
        "frame 1 of 3",
        "frame 2 of 3, the agent sees nothing",
        "frame 3 of 3, the agent sees nothing",
    ]
    assert all(frame.count("\n") == 4 for frame in frames[1:])
    assert no_pauses == [1 / game.metadata["render_fps"]] * 3
    assert game.render() is None


def test_rendering_that_cannot_be():
    with pytest.raises(ResetNeeded, match="render needs a game that has begun"):
        Catch(render_mode="ansi").render()
    with pytest.warns(UserWarning, match="render shows nothing without a render_mode"):
        assert begin(0, 0).render() is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 2}, "size must be at least 3, got 2"),
        ({"visible": 0}, "visible must be from 1 to 16, the number of frames; got 0"),
        ({"size": 5, "visible": 6}, "visible must be from 1 to 5, the number of frames; got 6"),
        ({"paddle_start": "left"}, "paddle_start must be one of 'random', 'centre'; got 'left'"),
    ],
)
def test_games_that_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        Catch(**arguments)
    with pytest.raises(ValueError, match=message):
        CatchVector(2, **arguments)
    if "visible" not in arguments:
        with pytest.raises(ValueError, match=message):
            random_score(**arguments)
        with pytest.raises(ValueError, match=message):
            optimal_score(**arguments)


def test_other_arguments_that_cannot_be():
    with pytest.raises(
        ValueError, match="render_mode must be None or one of 'ansi', 'rgb_array', 'human'; got 'ascii'"
    ):
        Catch(render_mode="ascii")
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        CatchVector(0)


@pytest.mark.parametrize("action", [-1, 3, True, False, np.True_, 1.0, np.float32(1), np.array([1]), "left", None])
def test_moves_that_cannot_be(action):
    game = begin(0, 1)
    with pytest.raises(ValueError, match=r"action must be 0 \(left\), 1 \(stay\) or 2 \(right\), got"):
        game.step(action)
    assert (game.frame, game.paddle) == (1, 1)


@pytest.mark.parametrize(
    "actions",
    [
        [0, 3],
        [-1, 0],
        [0, 1, 2],
        [1],
        1,
        [[0, 1]],
        np.array([True, False]),
        np.array([1.0, 2.0]),
        np.array([255, 0], np.uint8),
        [None, 1],
    ],
)
def test_moves_of_many_games_that_cannot_be(actions):
    games = CatchVector(2)
    games.reset(seed=0)
    before = games.paddle.copy()
    with pytest.raises(ValueError, match=r"actions must be 2 integers 0 \(left\), 1 \(stay\) or 2 \(right\), got"):
        games.step(actions)
    assert games.frame.tolist() == [1, 1]
    assert np.array_equal(games.paddle, before)


def test_moves_without_a_game():
    game = Catch(3)
    with pytest.raises(ResetNeeded, match="step needs a game that has begun and not ended"):
        game.step(STAY)
    game.reset(seed=0)
    assert game.step(STAY)[2] is False
    assert game.step(STAY)[2] is True
    with pytest.raises(ResetNeeded, match="step needs a game that has begun and not ended"):
        game.step(STAY)
    game.reset()
    game.step(STAY)


def test_moves_without_games():
    games = CatchVector(2)
    with pytest.raises(ResetNeeded, match="step needs games that have begun"):
        games.step(np.array([STAY, STAY]))
    with pytest.raises(ResetNeeded, match="leaves out games that never began"):
        games.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ResetNeeded, match="step needs games that have begun"):
        games.step(np.array([STAY, STAY]))


@pytest.mark.parametrize("mask", [[True, False], np.array([1, 0]), np.array([True]), None])
def test_masks_that_cannot_be(mask):
    games = CatchVector(2)
    games.reset(seed=0)
    with pytest.raises(ValueError, match=r"options\['reset_mask'\] must be an array \(2,\) of bool, got"):
        games.reset(options={"reset_mask": mask})


@pytest.mark.parametrize("paddle_start", catch.PADDLE_STARTS)
@pytest.mark.parametrize("size", [3, 4, 5])
def test_scores_are_those_of_all_ways_to_play(size, paddle_start):
    moves = np.array(list(product(range(3), repeat=size - 1)))
    paddles = range(size - 1) if paddle_start == "random" else [(size - 2) // 2]
    mean, best = [], []
    for ball, paddle in product(range(size), paddles):
        games = CatchVector(len(moves), size)
        games.reset()
        games.ball[:], games.paddle[:] = ball, paddle
        for actions in moves.T:
            rewards = games.step(actions)[1]
        mean.append(rewards.mean(dtype=np.float64))
        best.append(rewards.max())
    assert random_score(size, paddle_start) == pytest.approx(np.mean(mean))
    assert optimal_score(size, paddle_start) == np.mean(best)


def play(games, policy):
    """The rewards of ten games in each place, by a policy of the first frame and the number of the present one."""
    screens, _ = games.reset(seed=0)
    found = []
    for _ in range(10):
        first = screens
        for frame in range(1, games.size):
            screens, rewards, terminated, *_ = games.step(policy(first, frame))
        assert terminated.all()
        found.append(rewards.astype(np.float64))
    return np.concatenate(found)


@pytest.mark.parametrize("paddle_start", catch.PADDLE_STARTS)
@pytest.mark.parametrize("size", [6, 16])
def test_the_random_score_is_what_a_random_player_gets(size, paddle_start):
    random = np.random.default_rng(0)
    found = play(CatchVector(2000, size, 3, paddle_start), lambda first, frame: random.integers(3, size=2000))
    expected = random_score(size, paddle_start)
    assert expected == pytest.approx(4 / size - 1)
    assert found.mean() == pytest.approx(expected, abs=4 * found.std() / len(found) ** 0.5)


@pytest.mark.parametrize(("size", "visible"), [(16, 3), (24, 5), (7, 1)])
def test_the_optimal_score_is_what_a_player_gets_who_remembers_the_first_frame(size, visible):
    def policy(first, frame):
        ball, paddle = first[:, 0].argmax(1), first[:, -1].argmax(1)
        way = np.minimum(ball, size - 2) - paddle
        return 1 + np.where(frame <= abs(way), np.sign(way), 0)

    assert play(CatchVector(200, size, visible), policy).mean() == optimal_score(size)
