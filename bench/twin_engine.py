"""How long the engine's twin takes for hours of many agents, and where: ``python -m bench.twin_engine``.

The agents' deciding is left out: each sends its next turn some seconds after its answer.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import time
from collections import Counter
from pathlib import PurePath

import msgspec

from serve.twin.cost import Cost
from serve.twin.engine import TwinEngine
from serve.twin.engine_model import Admitted, Ask, Ended, EngineSettings
from serve.twin.machine import load_machine
from serve.twin.tiers_key import Key

SYSTEM_TOKENS = 8_000
LONGEST_TOKENS = 120_000
"""A longer conversation begins anew behind its system prompt."""


class Agent:
    """One conversation that grows."""

    def __init__(self, number: int, random_: random.Random) -> None:
        self.number = number
        self.turns = 0
        self._random = random_
        self._context = Key([(-1 - number, 0, SYSTEM_TOKENS)])

    def next_turn(self) -> Ask:
        self.turns += 1
        source = (self.turns * 1000 + self.number) * 2
        if len(self._context) > LONGEST_TOKENS:
            self._context = self._context.cut(0, SYSTEM_TOKENS)
        prompt = self._context + Key([(source, 0, self._random.randrange(200, 3000))])
        writes = self._random.randrange(50, 1500)
        output = Key([(source + 1, 0, writes)])
        self._context = prompt + output
        return Ask(
            rid=f"{self.number}/{self.turns}",
            prompt=prompt,
            output=output,
            writes_tokens=writes,
            max_new_tokens=4096,
        )


def play(settings: EngineSettings, cost: Cost, hours: float, agents: int, pause_s: float, seed: int) -> Counter[str]:
    """What happened, and ``turns``, ``stops`` (calls of ``run``) and tokens by tier."""
    random_ = random.Random(seed)
    twin = TwinEngine(settings, cost)
    everybody = {str(number): Agent(number, random_) for number in range(agents)}
    for agent in everybody.values():
        twin.submit(random_.random() * pause_s, agent.next_turn())
    seen: Counter[str] = Counter()
    while (when := twin.next_at()) is not None and when < hours * 3600:
        seen["stops"] += 1
        for event in twin.run(when):
            seen[type(event).__name__] += 1
            if isinstance(event, Admitted):
                seen.update(l1=event.cached.device, l2=event.cached.host, l3=event.cached.storage)
            elif isinstance(event, Ended):
                seen.update(turns=1, prompt=event.prompt_tokens, written=event.completion_tokens)
                agent = everybody[event.rid.split("/")[0]]
                twin.submit(event.at + random_.expovariate(1 / pause_s), agent.next_turn())
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", default="rx7900xtx-tp2")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument(
        "--pause", type=float, default=25.0, help="seconds between an answer and the next turn, on average"
    )
    parser.add_argument("--faster", type=float, default=1.0, help="divide the machine's times by this: more turns")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    machine = load_machine(given.machine)
    cost = Cost(**{name: value / given.faster for name, value in msgspec.structs.asdict(machine.cost).items()})
    profile = cProfile.Profile()
    if given.profile:
        profile.enable()
    began = time.process_time()
    seen = play(machine.engine, cost, given.hours, given.agents, given.pause, given.seed)
    spent = time.process_time() - began
    profile.disable()
    print(f"{spent:.1f} s of CPU, {1000 * spent / max(seen['turns'], 1):.2f} ms a turn; {dict(seen)}")
    if given.profile:
        by_file: Counter[str] = Counter()
        # mypy has no types for what pstats keeps.
        for (path, _, _), (_, _, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
            by_file[PurePath(path).name] += own
        for name, own in by_file.most_common(14):
            print(f"{100 * own / sum(by_file.values()):5.1f} %  {name}")
        pstats.Stats(profile).sort_stats("tottime").print_stats(18)


if __name__ == "__main__":
    main()
