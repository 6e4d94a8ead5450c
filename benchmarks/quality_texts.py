"""Texts of many kinds, written for this benchmark, which `benchmarks.quality` feeds to models as they are.

Their tokens are not a model's own: where a model is unsure, near ties are many, and a rounding that is too coarse shows.
"""

from __future__ import annotations

TEXTS: dict[str, str] = {
    "prose": """\
The ferry left at six, before the fog had lifted from the harbour, and for the first half hour nobody on deck could see more
than the rail in front of them. Marta had taken the crossing every Friday for eleven years. She knew the sound of each buoy,
the slow one by the breakwater and the two that answered each other at the mouth of the channel, and she could have said with
her eyes closed when the captain would turn north. What she could not have said was why she had packed a second coat. It lay
in her bag, grey and heavy, and smelled of the cupboard in which her brother had left it. He had written in March that the
house stood empty again, that somebody ought to look at the roof before winter, and that he would not be the one. When the fog
opened the island was already close: three chimneys, a church without a bell, and a line of boats drawn up so high on the
stones that they seemed to have been forgotten by the sea. A boy in yellow boots was waiting to catch the rope. He looked at
her, then at the bag, and asked whether she was the one who had come about the dog.
""",
    "encyclopaedia": """\
A volcano is an opening in the crust of a planet through which molten rock, ash and gases escape from a chamber below the
surface. On Earth most volcanoes lie where tectonic plates move apart or towards each other. At mid-ocean ridges, such as the
Mid-Atlantic Ridge, plates separate and magma rises to fill the gap; around the Pacific Ocean one plate sinks beneath another,
water is driven out of it, and the mantle above melts at a lower temperature. The viscosity of the magma decides how a volcano
erupts. Basalt, which holds about 50 percent of silica, flows easily and builds broad shield volcanoes like Mauna Loa in
Hawaii. Rhyolite, with more than 70 percent, traps its gases until they burst out, as in the eruption of Mount Pinatubo in the
Philippines in June 1991, which lowered the mean temperature of the northern hemisphere by about 0.5 degrees Celsius during
the following year. The size of eruptions is given by the volcanic explosivity index, a logarithmic scale from 0 to 8. Signs
that come before an eruption are swarms of small earthquakes, swelling of the ground and a change in the ratio of carbon
dioxide to sulphur dioxide in the gas that escapes.
""",
    "code": '''\
import heapq
from collections import defaultdict


class Graph:
    """A directed graph with weights on its edges."""

    def __init__(self) -> None:
        self._edges: dict[str, list[tuple[str, float]]] = defaultdict(list)

    def add_edge(self, source: str, target: str, weight: float = 1.0) -> None:
        if weight < 0:
            raise ValueError(f"weight of {source} -> {target} is negative: {weight}")
        self._edges[source].append((target, weight))

    def shortest_path(self, start: str, goal: str) -> tuple[float, list[str]]:
        """Dijkstra's algorithm. Raises KeyError where there is no path."""
        queue = [(0.0, start, [start])]
        seen = set()
        while queue:
            distance, node, path = heapq.heappop(queue)
            if node == goal:
                return distance, path
            if node in seen:
                continue
            seen.add(node)
            for neighbour, weight in self._edges[node]:
                if neighbour not in seen:
                    heapq.heappush(queue, (distance + weight, neighbour, path + [neighbour]))
        raise KeyError(f"no path from {start} to {goal}")


if __name__ == "__main__":
    graph = Graph()
    for line in open("roads.csv"):
        source, target, kilometres = line.strip().split(",")
        graph.add_edge(source, target, float(kilometres))
    print(graph.shortest_path("Lisbon", "Warsaw"))
''',
    "japanese": """\
東京の朝は早い。まだ暗いうちから、市場では大きな声が響き、魚を積んだ車が行き来する。山田さんは三十年前からここで働いている。
毎日四時に起きて、店を開け、常連の客を待つ。「今日の鯛はいいよ」と彼は言う。客は笑って、値段を聞く。雨の日も雪の日も、同じことを
繰り返してきた。息子は大学で経済を勉強していて、店を継ぐつもりはないらしい。それでも山田さんは寂しいとは言わない。時代が変われば、
人の生き方も変わるものだと思っているからである。昼になると市場は静かになり、猫が一匹、日の当たる場所で眠っている。
""",
    "dialogue": """\
User: My sourdough starter smells like nail polish. Did I kill it?
Assistant: Almost certainly not. That smell is acetone and ethyl acetate, which yeast and bacteria make when they run out of
food.
Feed it more often, or keep it cooler, and the smell should be gone after two or three feedings. Throw it away only if you see
pink
or orange streaks, or fuzzy mould on the surface.
User: ok, how much flour per feeding? i have about 100 g of starter 😅
Assistant: Take 25 g of the starter, add 50 g of flour and 50 g of water, and discard the rest (or bake pancakes with it 🥞).
Wait until
it has doubled, which takes 4 to 8 hours at 24 °C, and then do it again. After three days it should rise and fall on schedule.
👍
User: and if it doesn't?
Assistant: Then try whole rye flour for a day: it brings more minerals and more wild yeast. 🌾
""",
    "mathematics": """\
Let $f(x) = x^3 - 3x + 1$. Its derivative is $f'(x) = 3x^2 - 3$, which vanishes at $x = -1$ and $x = 1$. Since $f''(x) = 6x$,
the point $x = -1$ is a local maximum with $f(-1) = 3$ and $x = 1$ is a local minimum with $f(1) = -1$. As $f(-2) = -1 < 0 < 3
= f(-1)$, there is a root between $-2$ and $-1$; as $f(0) = 1$ and $f(1) = -1$, there is one between $0$ and $1$; and since
$f(2) = 3$, the third lies between $1$ and $2$. Put $x = 2\\cos\\theta$. Then $f(x) = 8\\cos^3\\theta - 6\\cos\\theta + 1 =
2\\cos 3\\theta + 1$, so that $\\cos 3\\theta = -1/2$ and $\\theta = 40^\\circ, 80^\\circ, 160^\\circ$. The roots are
therefore $2\\cos 40^\\circ \\approx 1.532$, $2\\cos 80^\\circ \\approx 0.347$ and $2\\cos 160^\\circ \\approx -1.879$, and
their sum is $0$, as Vieta's formulas demand.
""",
    "german": """\
Sehr geehrte Frau Lindner, vielen Dank für Ihre Anfrage vom 14. Mai. Die von Ihnen gewünschten Stühle sind in Eiche und in
Nussbaum lieferbar, die Lieferzeit beträgt derzeit sechs bis acht Wochen. Bei einer Abnahme von mehr als zwanzig Stück
gewähren wir einen Nachlass von zwölf Prozent auf den Listenpreis; die Kosten für den Transport innerhalb Österreichs
übernehmen wir. Sollten Sie die Stühle mit gepolsterter Sitzfläche bevorzugen, schicken wir Ihnen gern eine Auswahl unserer
Stoffe zu. Bitte teilen Sie uns auch mit, ob das Treppenhaus breit genug ist, damit wir die Tische, die Sie im Februar
bestellt haben, in einem Stück anliefern können. Mit freundlichen Grüßen, Johannes Brandstätter
""",
    "data": """\
{"order": 48213, "customer": {"name": "Aïcha N'Diaye", "city": "Dakar"}, "items": [{"sku": "LMP-0031", "qty": 2,
"price": 18.5}, {"sku": "CBL-1200", "qty": 1, "price": 4.25}], "total": 41.25, "paid": true, "notes": null}

| city      | 2021 | 2022 | 2023 | change |
|-----------|-----:|-----:|-----:|-------:|
| Oslo      |  704 |  709 |  717 |  +1.1% |
| Bergen    |  286 |  289 |  291 |  +0.7% |
| Trondheim |  207 |  210 |  212 |  +1.0% |
| Stavanger |  145 |  146 |  149 |  +2.1% |

Sept. 3, 09:14:07 host-12 sshd[2231]: Failed password for invalid user admin from 203.0.113.77 port 50122 ssh2
Sept. 3, 09:14:09 host-12 sshd[2231]: Connection closed by invalid user admin 203.0.113.77 port 50122 [preauth]
""",
}
"""By kind; some hundred tokens each."""
