package answers

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// answer is the result of one request: ids, and a hash per token, so that the first different token
// can be named. The hash covers the id, the bits of its log probability, and the ids and bits of
// the top alternatives. The scores of a prompt have one hash per 32 positions and no ids.
type answer struct {
	ids    []int32
	hashes []uint32
}

func (a answer) String() string {
	var b strings.Builder
	for i, id := range a.ids {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(int(id)))
	}
	b.WriteByte('\t')
	for _, h := range a.hashes {
		fmt.Fprintf(&b, "%08x", h)
	}
	return b.String()
}

func parseAnswer(ids, hashes string) (a answer, err error) {
	if ids != "" {
		for s := range strings.SplitSeq(ids, ",") {
			n, err := strconv.ParseInt(s, 10, 32)
			if err != nil {
				return a, err
			}
			a.ids = append(a.ids, int32(n))
		}
	}
	if len(hashes)%8 != 0 {
		return a, fmt.Errorf("%d digits of hashes", len(hashes))
	}
	for i := 0; i < len(hashes); i += 8 {
		h, err := strconv.ParseUint(hashes[i:i+8], 16, 32)
		if err != nil {
			return a, err
		}
		a.hashes = append(a.hashes, uint32(h))
	}
	return a, nil
}

// difference describes where b, the current answer, first differs from a; "" if nowhere.
func (a answer) difference(b answer) string {
	for i := range min(len(a.hashes), len(b.hashes)) {
		switch {
		case i < min(len(a.ids), len(b.ids)) && a.ids[i] != b.ids[i]:
			return fmt.Sprintf("token %d was %d and is %d", i, a.ids[i], b.ids[i])
		case a.hashes[i] == b.hashes[i]:
		case i < len(a.ids):
			return fmt.Sprintf("token %d is %d as before, with other log probabilities", i, a.ids[i])
		default:
			return fmt.Sprintf("other scores of the prompt from position %d on", i*scoreRun)
		}
	}
	if len(a.hashes) != len(b.hashes) || len(a.ids) != len(b.ids) {
		return fmt.Sprintf("%d tokens were %d", len(b.hashes), len(a.hashes))
	}
	return ""
}

// key identifies a setup and a request.
type key struct{ setup, request string } // "llama bf16 int8", "full greedy 168+16"

func (k key) String() string { return k.setup + ": " + k.request }

// record holds answers in request order.
type record struct {
	order   []key
	answers map[key]answer
	wrong   map[key]string // answers that differ between two configurations, or that failed
}

func newRecord() *record {
	return &record{answers: map[key]answer{}, wrong: map[key]string{}}
}

// add records an answer; how describes the configuration.
func (r *record) add(k key, a answer, how string) {
	have, ok := r.answers[k]
	if !ok {
		r.order = append(r.order, k)
		r.answers[k] = a
		return
	}
	if d := have.difference(a); d != "" && r.wrong[k] == "" {
		r.wrong[k] = "not the same on " + how + ": " + d
	}
}

// keep removes the answers that do not match.
func (r *record) keep(only *regexp.Regexp) {
	var order []key
	for _, k := range r.order {
		if only.MatchString(k.setup) {
			order = append(order, k)
		}
	}
	r.order = order
}

// keepOf removes the answers that other does not have.
func (r *record) keepOf(other *record) {
	r.order = slices.DeleteFunc(r.order, func(k key) bool { _, has := other.answers[k]; return !has })
}

// write stores r: a line per setup, followed by one per answer.
func (r *record) write(path string) error {
	for k, w := range r.wrong {
		return fmt.Errorf("answers: %v: %s; nothing is recorded", k, w)
	}
	var b bytes.Buffer
	setup := ""
	for _, k := range r.order {
		if k.setup != setup {
			setup = k.setup
			fmt.Fprintf(&b, "= %s\n", setup)
		}
		fmt.Fprintf(&b, "%s\t%v\n", k.request, r.answers[k])
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

func readRecord(path string) (*record, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r, setup, n := newRecord(), "", 0
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		n++
		if s, ok := strings.CutPrefix(lines.Text(), "= "); ok {
			setup = s
			continue
		}
		parts := strings.Split(lines.Text(), "\t")
		if len(parts) != 3 {
			return nil, fmt.Errorf("answers: %s:%d: %d columns, want request, ids, hashes", path, n, len(parts))
		}
		a, err := parseAnswer(parts[1], parts[2])
		k := key{setup, parts[0]}
		if _, twice := r.answers[k]; err != nil || twice {
			return nil, fmt.Errorf("answers: %s:%d: %v: twice, or no answer: %w", path, n, k, err)
		}
		r.add(k, a, "")
	}
	return r, nil
}

// differences has the comparison with a later record.
type differences struct {
	same                   int
	differ, missing, fresh []string
}

func (d *differences) lines() (all []string) {
	for _, part := range []struct {
		word  string
		lines []string
	}{{"DIFFERS ", d.differ}, {"GONE    ", d.missing}, {"new     ", d.fresh}} {
		for _, l := range part.lines {
			all = append(all, part.word+l)
		}
	}
	return all
}

func (r *record) differences(now *record) *differences {
	d := &differences{}
	for _, k := range now.order {
		before, known := r.answers[k]
		what := now.wrong[k]
		if known && what == "" {
			what = before.difference(now.answers[k])
		}
		switch {
		case what != "":
			d.differ = append(d.differ, fmt.Sprintf("%v: %s", k, what))
		case known:
			d.same++
		default:
			d.fresh = append(d.fresh, k.String())
		}
	}
	for _, k := range r.order {
		if _, ok := now.answers[k]; !ok {
			d.missing = append(d.missing, k.String())
		}
	}
	return d
}
