package eval

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// task is one kind of question. make draws its parts. The Generator assembles them to the exact
// length.
type task struct {
	name  string
	about string
	chat  bool // rendered with the chat template; the model writes the lead itself
	named bool // run only if named explicitly
	make  func(m *maker) parts
}

// tasks lists all tasks in table order.
var tasks = []task{
	{"passkey", "one pass key in repeated sentences", false, false, passkey},
	{"niah_single_noise", "one needle in repeated sentences", false, false, func(m *maker) parts { return m.needles(1, noise) }},
	{"niah_single_text", "one needle in text", false, false, func(m *maker) parts { return m.needles(1, text) }},
	{"niah_multikey", "one of eight needles", false, false, func(m *maker) parts { return m.needles(8, text) }},
	{"niah_multivalue", "all four values of one key, in order", false, false, multiValue},
	{"niah_multiquery", "the values of four keys at once", false, false, func(m *maker) parts { return m.queries(4) }},
	{"kv_json", "one of many pairs: words and numbers", false, false, func(m *maker) parts { return m.pairs(false) }},
	{"kv_hex", "one of many pairs: hexadecimal", false, false, func(m *maker) parts { return m.pairs(true) }},
	{"vt", "variables along a chain of four assignments", false, false, tracking},
	{"cwe", "the ten common words of a list (not trained on)", false, false, commonWords},
	{"fwe", "the three most frequent words", false, false, frequentWords},
	{"chat_niah", "one needle in text, asked as a chat message", true, false, func(m *maker) parts { return m.needles(1, text) }},
	{"niah_second", "another of eight needles, after one was asked for and answered (--together)", false, true, secondNeedle},
	{"kv_second", "another of many pairs of words and numbers, after one (--together)", false, true, secondPair},
	{"qa", "a question about one of many documents (--qa; else each has a needle)", false, true, answering},
	{"niah_all", "the values of eight keys at once", false, true, func(m *maker) parts { return m.queries(8) }},
}

// TaskNames returns the names of the tasks in table order.
func TaskNames() []string {
	var names []string
	for _, t := range tasks {
		names = append(names, t.name)
	}
	return names
}

// defaultTasks returns the tasks that run by default.
func defaultTasks() []string {
	var names []string
	for _, t := range tasks {
		if !t.named {
			names = append(names, t.name)
		}
	}
	return names
}

// NeedsChat reports whether a task requires a chat template.
func NeedsChat(name string) bool {
	return slices.ContainsFunc(tasks, func(t task) bool { return t.name == name && t.chat })
}

// TaskHelp describes each task in a line.
func TaskHelp() string {
	var b strings.Builder
	for _, t := range tasks {
		when := ""
		if t.named {
			when = "; when named"
		}
		fmt.Fprintf(&b, "  %-18s %s%s\n", t.name, t.about, when)
	}
	return b.String()
}

// mean9 has the tasks of the summary column. The bundled model does them well with full attention,
// so losses are due to the policy.
var mean9 = []string{"passkey", "niah_single_noise", "niah_single_text", "niah_multikey", "niah_multiquery",
	"kv_json", "kv_hex", "vt", "chat_niah"}

type haystack uint8

const (
	noise haystack = iota // repeated sentences
	text                  // code, or prose in one of four samples
)

// event is text at a relative position of the haystack, on a separate line.
type event struct {
	at   float64
	text string
}

// parts has the components of a sample.
type parts struct {
	intro    string
	events   []event
	ask      string
	lead     string // first words of the answer, part of the prompt except in a chat
	given    string // further words of the answer, given during the answer instead of in the prompt
	answer   string
	wanted   []string // values in the answer, for recall
	hay      haystack
	depth    float64 // of the single needle; -1: not a single needle
	anyOrder bool    // the answer is correct in any order
	anyOf    bool    // any of wanted is correct, anywhere in the answer
}

// maker draws the parts of one sample.
type maker struct {
	*rng
	length     int
	shrink     float64 // factor for lists that were too long for the prompt
	paragraphs []Paragraph
}

func (m *maker) number(digits int) string {
	lo := 1
	for range digits - 1 {
		lo *= 10
	}
	return strconv.Itoa(lo + m.below(9*lo))
}

func (m *maker) hex() string { return fmt.Sprintf("%08x", m.bits()>>32) }

func (m *maker) pair() string { return pick(m.rng, adjectives) + "-" + pick(m.rng, nouns) }

func (m *maker) variable() string {
	b := make([]byte, 3)
	for i := range b {
		b[i] = 'A' + byte(m.below(26))
	}
	return string(b)
}

// distinct draws n different words.
func distinct(n int, draw func() string) []string {
	seen, out := map[string]bool{}, make([]string, 0, n)
	for len(out) < n {
		if k := draw(); !seen[k] {
			seen[k] = true
			out = append(out, k)
		}
	}
	return out
}

func (m *maker) places(n int) []float64 {
	p := make([]float64, n)
	for i := range p {
		p[i] = m.unit()
	}
	return p
}

func passkey(m *maker) parts {
	v, at := m.number(5), m.unit()
	return parts{intro: introPasskey, events: []event{{at, fill(passkeyLine, "", "", v)}}, ask: askPasskey, lead: leadPasskey,
		answer: " " + v + ".", wanted: []string{v}, hay: noise, depth: at}
}

// needles hides n needles and asks for one.
func (m *maker) needles(n int, hay haystack) parts {
	keys, values := distinct(n, m.pair), make([]string, n)
	p := m.hide(keys, values, hay)
	p.askOne(m.below(n), keys, values)
	if n == 1 {
		p.depth = p.events[0].at
	}
	return p
}

// hide creates a sentence for each key and value.
func (m *maker) hide(keys, values []string, hay haystack) parts {
	p := parts{intro: fill(introNeedles, "number", "", ""), hay: hay, depth: -1}
	for i, k := range keys {
		values[i] = m.number(7)
		p.events = append(p.events, event{m.unit(), fill(needleLine, "number", k, values[i])})
	}
	return p
}

func (p *parts) askOne(i int, keys, values []string) {
	p.ask, p.lead = fill(askOne, "number", keys[i], ""), fill(leadOne, "number", keys[i], "")
	p.answer, p.wanted = " "+values[i]+".", values[i:i+1]
}

func multiValue(m *maker) parts {
	p := parts{intro: fill(introNeedles, "number", "", ""), hay: text, depth: -1}
	key, at := m.pair(), m.places(4)
	slices.Sort(at)
	for _, a := range at {
		v := m.number(7)
		p.wanted = append(p.wanted, v)
		p.events = append(p.events, event{a, fill(needleLine, "number", key, v)})
	}
	p.ask, p.lead = fill(askAll, "number", key, ""), fill(leadAll, "number", key, "")
	p.answer = " " + strings.Join(p.wanted, ", ") + "."
	return p
}

// then asks for another value with the same phrase. The prompt ends with the first question, so a policy
// evicts tokens in view of it. The first answer and the second question follow token by token.
func (p parts) then(ask func(p *parts)) parts {
	second := p
	ask(&second)
	p.given = p.answer + "\nQuestion: " + second.ask + "\nAnswer:" + second.lead
	p.answer, p.wanted = second.answer, second.wanted
	return p
}

func secondNeedle(m *maker) parts {
	keys, values := distinct(8, m.pair), make([]string, 8)
	p, two := m.hide(keys, values, text), m.sample(8, 2)
	p.askOne(two[0], keys, values)
	return p.then(func(p *parts) { p.askOne(two[1], keys, values) })
}

func secondPair(m *maker) parts {
	p, keys, values := m.object(false)
	p.events[0].at = m.unit()
	two := m.sample(len(keys), 2)
	p.askPair(two[0], keys, values)
	return p.then(func(p *parts) { p.askPair(two[1], keys, values) })
}

// queries hides n needles and asks for all of them in another order.
func (m *maker) queries(n int) parts {
	p := parts{intro: fill(introNeedles, "number", "", ""), hay: text, depth: -1}
	keys := distinct(n, m.pair)
	var values, requested []string
	for _, k := range keys {
		v := m.number(7)
		values = append(values, v)
		p.events = append(p.events, event{m.unit(), fill(needleLine, "number", k, v)})
	}
	for _, i := range m.sample(n, n) {
		requested, p.wanted = append(requested, keys[i]), append(p.wanted, values[i])
	}
	all := strings.Join(requested, ", ")
	p.ask, p.lead = fill(askAll, "number", all, ""), fill(leadAll, "number", all, "")
	p.answer = " " + strings.Join(p.wanted, ", ") + "."
	return p
}

// pairs asks for one of many pairs.
func (m *maker) pairs(hex bool) parts {
	p, keys, values := m.object(hex)
	p.askPair(m.below(len(keys)), keys, values)
	p.events[0].at = m.unit()
	return p
}

func (p *parts) askPair(i int, keys, values []string) {
	p.ask, p.lead = fill(askPair, "", keys[i], ""), fill(leadPair, "", keys[i], "")
	p.answer, p.wanted = ` "`+values[i]+`"`, values[i:i+1]
}

// object fills most of the prompt with one JSON object.
func (m *maker) object(hex bool) (p parts, keys, values []string) {
	each, key, value := 19.0, m.pair, func() string { return m.number(7) }
	switch {
	case hex:
		each, key, value = 26, m.hex, m.hex
	case m.below(3) == 2:
		key = func() string { return m.pair() + "-" + m.number(3) }
	}
	n := max(4, int(m.shrink*float64(m.length-150)*0.85/each))
	keys, values = distinct(n, key), make([]string, n)
	var b strings.Builder
	b.WriteString("{\n")
	for i, k := range keys {
		values[i] = value()
		fmt.Fprintf(&b, " %q: %q,\n", k, values[i])
	}
	b.WriteString("}\n")
	return parts{intro: introPairs, events: []event{{0, b.String()}}, hay: text, depth: -1}, keys, values
}

func tracking(m *maker) parts {
	p := parts{intro: introTracking, hay: noise, depth: -1}
	names, v, at := distinct(5, m.variable), m.number(5), m.places(5)
	slices.Sort(at)
	for i, x := range names {
		from := v
		if i > 0 {
			from = "VAR " + names[i-1]
		}
		p.events = append(p.events, event{at[i], "VAR " + x + " = " + from + "\n"})
	}
	p.ask, p.lead = fill(askTracking, "", "", v), fill(leadTracking, "", "", v)
	p.answer, p.wanted = " "+strings.Join(names, " "), names
	return p
}

// vocabulary returns all single words without duplicates.
func vocabulary() []string {
	all := slices.Concat(adjectives, nouns)
	slices.Sort(all)
	return slices.Compact(all)
}

// frequentWords draws words by Zipf's law with exponent 2. The counts of the first four must
// differ, so that the answer is unique.
func frequentWords(m *maker) parts {
	n := int(float64(m.length) * 1.6 * m.shrink / 3.6)
	all := vocabulary()
	var words []string
	for _, i := range m.sample(len(all), max(8, min(250, n/6))) {
		words = append(words, all[i])
	}
	for ; ; n++ { // add a word after every tie
		count, rank, seq := make([]int, len(words)), make([]int, len(words)), []string{}
		for range n {
			if k := m.zipf(len(words)); k >= 0 {
				count[k]++
				seq = append(seq, words[k])
			}
		}
		for i := range rank {
			rank[i] = i
		}
		slices.SortStableFunc(rank, func(a, b int) int { return cmp.Compare(count[b], count[a]) })
		top := func(i int) int { return count[rank[i]] }
		if top(3) < 1 || top(0) == top(1) || top(1) == top(2) || top(2) == top(3) {
			continue
		}
		m.shuffle(len(seq), func(i, j int) { seq[i], seq[j] = seq[j], seq[i] })
		wanted := []string{words[rank[0]], words[rank[1]], words[rank[2]]}
		return parts{intro: introFrequent, events: []event{{0.3, lines(seq)}}, ask: askFrequent, lead: leadFrequent,
			answer: " " + strings.Join(wanted, " "), wanted: wanted, hay: text, depth: -1}
	}
}

// zipf draws k with probability (k+1)^-2 / zeta(2), or -1 beyond n.
func (m *maker) zipf(n int) int {
	u := m.unit() * 1.6449340668482264
	for k := range n {
		if u -= 1 / float64((k+1)*(k+1)); u < 0 {
			return k
		}
	}
	return -1
}

func lines(words []string) string {
	var b strings.Builder
	for row := range slices.Chunk(words, 16) {
		b.WriteString(strings.Join(row, " ") + "\n")
	}
	return b.String()
}

// commonWords returns a numbered list with ten frequent words; the others occur a tenth as often.
func commonWords(m *maker) parts {
	n := max(60, int(m.shrink*float64(m.length-150)*0.85/6))
	often := max(4, min(30, n/20))
	rare := max(1, often/10)
	words, all := 10+max(1, (n-10*often)/rare), vocabulary()
	draw := func() string { return pick(m.rng, all) }
	if words > len(all)/2 {
		draw = m.pair
	}
	list := distinct(words, draw)
	var seq []string
	for i, w := range list {
		k := rare
		if i < 10 {
			k = often
		}
		for range k {
			seq = append(seq, w)
		}
	}
	m.shuffle(len(seq), func(i, j int) { seq[i], seq[j] = seq[j], seq[i] })
	first := map[string]int{}
	for i, w := range seq {
		if _, ok := first[w]; !ok {
			first[w] = i
		}
		seq[i] = strconv.Itoa(i+1) + ". " + w
	}
	common := list[:10]
	slices.SortFunc(common, func(a, b string) int { return cmp.Compare(first[a], first[b]) })
	var answer strings.Builder
	for i, w := range common {
		fmt.Fprintf(&answer, " %d. %s", i+1, w)
	}
	return parts{intro: introCommon, events: []event{{0.3, lines(seq)}}, ask: askCommon, lead: leadCommon,
		answer: answer.String(), wanted: common, hay: text, depth: -1, anyOrder: true}
}
