package compare

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Load is the load of a cell: decode of a number of rows, or one prompt.
type Load struct {
	Rows   int `json:"rows,omitempty"`
	Prompt int `json:"prompt,omitempty"`
}

// String names the load as in the table.
func (l Load) String() string {
	if l.Prompt > 0 {
		return fmt.Sprintf("prompt of %d", l.Prompt)
	}
	return fmt.Sprintf("decode, %d rows", l.Rows)
}

// Cell is one build with one load on one network.
type Cell struct {
	Build   string          `json:"build"`
	Shape   string          `json:"shape"`
	Nodes   int             `json:"nodes"`
	Load    Load            `json:"load"`
	Delay   time.Duration   `json:"delay_ns"`
	Rate    string          `json:"rate"`
	Mapping string          `json:"mapping"`
	Times   []time.Duration `json:"times_ns"` // of a step, or of the prompt, by round
	Late    time.Duration   `json:"late_ns"`  // average lateness of packets in the worst round

	TokensPerS float64       `json:"tokens_per_s"`
	Wait       time.Duration `json:"wait_ns"`  // time more than without delay and with an unlimited rate
	Floor      time.Duration `json:"floor_ns"` // least time on the wire, by floor
	Bytes      int64         `json:"bytes"`    // on the busiest direction of a link, per step or prompt

	bytes  []int64
	tokens int
}

// Step returns the median time.
func (c *Cell) Step() time.Duration { return median(c.Times) }

// median returns the middle value, or the mean of the two middle ones.
func median[T ~int64](of []T) T {
	s := slices.Sorted(slices.Values(of))
	low, high := s[(len(s)-1)/2], s[len(s)/2]
	return low + (high-low)/2
}

// finish computes the figures from the measurements.
func (c *Cell) finish(s Shape, still time.Duration) {
	tokens := c.Load.Prompt
	b := median(c.bytes)
	if tokens == 0 {
		tokens = c.Load.Rows
		b /= int64(max(1, c.tokens))
	}
	c.Bytes = b
	c.TokensPerS = float64(tokens) / c.Step().Seconds()
	c.Wait = max(0, c.Step()-still)
	c.Floor = floor(s.Layers, c.Delay, c.Rate, b)
}

// floor returns the least time on the wire: one delay for each of two synchronizations of a layer and for
// the head, and the time of the bytes on the busiest link. A step sends its plan and its result while
// others wait, and a prompt has a step for each chunk. So no scheduler can reach the floor.
func floor(layers int, delay time.Duration, rate string, bytes int64) time.Duration {
	wait := time.Duration(2*layers+1) * delay
	if r := bytesPerSecond(rate); r > 0 {
		wait += time.Duration(float64(bytes) / r * float64(time.Second))
	}
	return wait
}

// bytesPerSecond reads a rate in gbit or mbit; 0: unlimited.
func bytesPerSecond(rate string) float64 {
	for unit, v := range map[string]float64{"gbit": 1e9 / 8, "mbit": 1e6 / 8} {
		if n, ok := strings.CutSuffix(rate, unit); ok {
			if x, err := strconv.ParseFloat(n, 64); err == nil {
				return x * v
			}
		}
	}
	return 0
}

// Text returns the cell as one line.
func (c *Cell) Text() string {
	return fmt.Sprintf("%s %d nodes, %v %s, %v: %s (%s) %.2f tokens/s, step %.2f ms, waits %.2f, floor %.2f, packets %v late",
		c.Shape, c.Nodes, c.Delay, rateText(c.Rate), c.Load, c.Build, c.Mapping, c.TokensPerS, ms(c.Step()), ms(c.Wait),
		ms(c.Floor), c.Late.Round(time.Microsecond))
}

func rateText(rate string) string {
	if rate == "0" {
		return "unlimited"
	}
	return rate
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// wireOf is a network: the delay between two hosts, one way, and the rate of a host's link.
type wireOf struct {
	delay time.Duration
	rate  string
}

// still is the network of the reference: no delay and an unlimited rate.
var still = wireOf{0, "0"}

// networks lists all pairs of delays and rates. Neighbours differ in both, so that a comparison that is cut short has
// measured every delay and every rate.
func networks(delays []time.Duration, rates []string) (out []wireOf) {
	for k := range rates {
		for i, d := range delays {
			out = append(out, wireOf{d, rates[(i+k)%len(rates)]})
		}
	}
	return out
}

// late reports whether packets were late by more than a tenth of the delay.
func (c *Cell) late() bool { return c.Late > c.Delay/10 }

// Table returns the cells as Markdown, one row for each load and network. Each later build is compared with the
// first. Rows with * had packets that were late by more than a tenth of the delay.
func Table(cells []Cell) string {
	type key struct {
		shape string
		nodes int
		wireOf
		load Load
	}
	rows, order, builds := map[key][]Cell{}, []key(nil), []string(nil)
	for _, c := range cells {
		k := key{c.Shape, c.Nodes, wireOf{c.Delay, c.Rate}, c.Load}
		if rows[k] == nil {
			order = append(order, k)
		}
		rows[k] = append(rows[k], c)
		if !slices.Contains(builds, c.Build) {
			builds = append(builds, c.Build)
		}
	}
	head := []string{"shape", "nodes", "one way", "rate", "load"}
	for i, b := range builds {
		head = append(head, b+", tokens/s")
		if i > 0 {
			head = append(head, "ratio")
		}
	}
	for _, b := range builds {
		head = append(head, b+": step, ms", "waits", "floor", "share", "KB on a link", "mapping")
	}
	var text strings.Builder
	line := func(cells []string) { text.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(head)
	line(slices.Repeat([]string{"---"}, len(head)))
	for _, k := range order {
		mark := ""
		if k.delay > 0 && slices.ContainsFunc(rows[k], func(c Cell) bool { return c.late() }) {
			mark = "*"
		}
		out, more := []string{k.shape, strconv.Itoa(k.nodes), k.delay.String(), rateText(k.rate) + mark, k.load.String()}, []string(nil)
		for i, c := range rows[k] {
			out = append(out, fmt.Sprintf("%.2f", c.TokensPerS))
			if i > 0 {
				out = append(out, fmt.Sprintf("%.2f", c.TokensPerS/rows[k][0].TokensPerS))
			}
			more = append(more, fmt.Sprintf("%.2f", ms(c.Step())), fmt.Sprintf("%.2f", ms(c.Wait)), fmt.Sprintf("%.2f", ms(c.Floor)),
				fmt.Sprintf("%.0f %%", 100*ms(c.Wait)/ms(c.Step())), fmt.Sprintf("%.1f", float64(c.Bytes)/1e3), c.Mapping)
		}
		line(append(out, more...))
	}
	return text.String()
}
