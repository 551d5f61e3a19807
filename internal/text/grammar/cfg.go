package grammar

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// eid is an expression of a context-free grammar whose terminals are regular expressions.
// Equal expressions are one; a rule is named, and so may be recursive.
type eid uint32

const (
	eFail eid = iota // nothing
	eDone            // the empty string
)

type ekind uint8

const (
	xFail ekind = iota
	xDone
	xLex     // a: a regular expression
	xSeq     // a, then b
	xAlt     // one of list
	xRepeat  // a, lo to hi times; hi -1: without end
	xRule    // a: a rule
	xMembers // members of an object: a: the object, b: declared names that it has, lo: how many members it has, hi: undeclared names
	xName    // what follows an undeclared name, list[0]: which others; a, b, lo, hi: as before it
)

type enode struct {
	kind   ekind
	a, b   uint32
	lo, hi int32
	list   []eid
}

// frame is what is to follow: an expression, then the rest of the stack. Stacks share
// their tails, and equal ones are one frame, so that a state is a set of numbers.
type frame struct {
	e    eid
	next fid
}

type fid uint32

const noFrame fid = 0 // nothing is to follow: the text may end

// thread is one way to read the text so far: in the middle of a terminal, with a stack.
// One in the middle of an undeclared name knows the text of it.
type thread struct {
	r rid
	k fid
	c cid
}

// opened is what can come first in a frame.
type opened struct {
	threads []thread
	end     bool // the text may end here
	loose   bool // a name is not known: less may follow
}

// machine is a grammar in the making and at work: a pushdown automaton whose states are
// sets of threads, made when they are reached.
type machine struct {
	*regexes
	exprs  []enode
	eindex map[string]eid
	rules  []eid // the body of each
	yields []uint8
	fits   map[eid]bool

	frames []frame
	findex map[frame]fid
	open   map[fid]*opened
	opens  int
	states map[string]*state
	start  *state
	held   int // bytes of states and masks, about
	ekey   []byte
	skey   []byte

	objects  []*members
	nameSets [][]uint64 // of names that were
	setIDs   map[string]uint32

	otherSets []otherNames // the first is empty
	otherIDs  map[rid]int32
	names     []nameByte
	nameIDs   map[nameByte]cid

	thought     fid      // what follows a thought; noFrame: none may come
	annotations []string // places of keywords that have no effect

	insides    map[rid]*inside
	plainChars map[rid]bool // characters of JSON strings, every plain one among them
	char       rid          // a character of a JSON string, in any spelling
	shortChar  rid          // the same, in its shortest spelling
}

// state is a set of threads after some text. It does not change, but for what it has
// learnt of what follows.
type state struct {
	threads []thread
	end     bool
	loose   bool // a name before it is not known: less may follow
	naming  bool // a thread is in the middle of an undeclared name
	part    *partition
	next    []*state
	mask    *Mask
	maybe   []int32 // tokens that only the names before them decide on
	known   *Mask   // mask with those of maybe that may follow
	base    *state  // the same without the texts of names, where masks are shared
}

var dead = &state{}

func newMachine(limit int) *machine {
	m := &machine{regexes: newRegexes(limit), eindex: map[string]eid{}, findex: map[frame]fid{}, open: map[fid]*opened{}, states: map[string]*state{}, fits: map[eid]bool{}}
	m.exprs = []enode{{kind: xFail}, {kind: xDone}}
	m.frames = []frame{{}}
	m.insides, m.setIDs = map[rid]*inside{}, map[string]uint32{}
	m.otherSets, m.otherIDs = []otherNames{{names: rEmpty}}, map[rid]int32{}
	m.names, m.nameIDs = make([]nameByte, noText+1), map[nameByte]cid{}
	m.char, m.shortChar = m.jsonChar(), jsonText{m.regexes}.class(anyRune)
	m.plainChars = map[rid]bool{m.char: true, m.shortChar: true}
	return m
}

const (
	maxExprs   = 1 << 20
	maxFrames  = 1 << 20
	maxThreads = 1 << 14
	maxOpens   = 1 << 21
)

func (m *machine) expr(n enode) eid {
	k := append(m.ekey[:0], byte(n.kind))
	for _, v := range [...]uint32{n.a, n.b, uint32(n.lo), uint32(n.hi)} {
		k = binary.LittleEndian.AppendUint32(k, v)
	}
	for _, e := range n.list {
		k = binary.LittleEndian.AppendUint32(k, uint32(e))
	}
	m.ekey = k
	if id, ok := m.eindex[string(k)]; ok {
		return id
	}
	if len(m.exprs) >= maxExprs {
		panic(tooLarge{"it has too many parts"})
	}
	m.exprs = append(m.exprs, n)
	id := eid(len(m.exprs) - 1)
	m.eindex[string(k)] = id
	return id
}

func (m *machine) lex(r rid) eid {
	switch {
	case r == rEps:
		return eDone
	case !m.alive(r):
		return eFail
	}
	return m.expr(enode{kind: xLex, a: uint32(r)})
}

func (m *machine) text(s string) eid { return m.lex(m.literal(s)) }

func (m *machine) seq(list ...eid) eid {
	out := eDone
	for i := len(list) - 1; i >= 0; i-- {
		e := list[i]
		switch {
		case e == eFail || out == eFail:
			return eFail
		case e == eDone:
		case out == eDone:
			out = e
		default:
			out = m.seq2(e, out)
		}
	}
	return out
}

func (m *machine) seq2(a, b eid) eid {
	if n := m.exprs[a]; n.kind == xSeq {
		return m.seq2(eid(n.a), m.seq2(eid(n.b), b))
	}
	return m.expr(enode{kind: xSeq, a: uint32(a), b: uint32(b)})
}

func (m *machine) alt(list ...eid) eid {
	flat := make([]eid, 0, len(list))
	for _, e := range list {
		if e == eFail || slices.Contains(flat, e) && len(flat) < 64 {
			continue
		}
		flat = append(flat, e)
	}
	switch len(flat) {
	case 0:
		return eFail
	case 1:
		return flat[0]
	}
	return m.expr(enode{kind: xAlt, list: flat})
}

func (m *machine) times(e eid, lo, hi int) eid {
	switch {
	case hi == 0 || e == eDone:
		return eDone
	case hi > 0 && lo > hi:
		return eFail
	case e == eFail && lo == 0:
		return eDone
	case e == eFail:
		return eFail
	case lo == 1 && hi == 1:
		return e
	}
	return m.expr(enode{kind: xRepeat, a: uint32(e), lo: int32(lo), hi: int32(hi)})
}

func (m *machine) maybe(e eid) eid { return m.alt(e, eDone) }

// rule names an expression that is told later.
func (m *machine) rule() (name int, e eid) {
	m.rules = append(m.rules, eFail)
	name = len(m.rules) - 1
	return name, m.expr(enode{kind: xRule, a: uint32(name)})
}

// finish makes a grammar of its first expression, and tells whether any text fits it.
func (m *machine) finish(start eid) bool {
	m.settle()
	clear(m.fits)
	if !m.can(start) {
		return false
	}
	o := m.openFrame(m.frame(start, noFrame))
	m.start = m.state(o.threads, o.end, false)
	return true
}

// settle finds the rules that some text fits: from those that need no other one upwards.
func (m *machine) settle() {
	m.yields = make([]uint8, len(m.rules))
	users := make([][]int, len(m.rules))
	var uses func(e eid, seen map[eid]bool, rule int)
	uses = func(e eid, seen map[eid]bool, rule int) {
		if seen[e] {
			return
		}
		seen[e] = true
		n := &m.exprs[e]
		switch n.kind {
		case xRule:
			users[n.a] = append(users[n.a], rule)
		case xSeq:
			uses(eid(n.a), seen, rule)
			uses(eid(n.b), seen, rule)
		case xAlt:
			for _, a := range n.list {
				uses(a, seen, rule)
			}
		case xRepeat:
			uses(eid(n.a), seen, rule)
		case xMembers:
			for _, e := range m.objects[n.a].parts() {
				uses(e, seen, rule)
			}
		}
	}
	work := make([]int, 0, len(m.rules))
	for i, body := range m.rules {
		uses(body, map[eid]bool{}, i)
		work = append(work, i)
	}
	for len(work) > 0 {
		i := work[0]
		work = work[1:]
		if m.yields[i] != 0 {
			continue
		}
		clear(m.fits)
		if m.can(m.rules[i]) {
			m.yields[i] = 1
			work = append(work, users[i]...)
		}
	}
}

// can tells whether any text fits e, as far as rules are settled.
func (m *machine) can(e eid) bool {
	if v, ok := m.fits[e]; ok {
		return v
	}
	n := m.exprs[e]
	v := false
	switch n.kind {
	case xDone, xLex:
		v = true
	case xSeq:
		v = m.can(eid(n.a)) && m.can(eid(n.b))
	case xAlt:
		v = slices.ContainsFunc(n.list, m.can)
	case xRepeat:
		v = n.lo == 0 || m.can(eid(n.a))
	case xRule:
		v = m.yields[n.a] != 0
	case xMembers:
		v = m.canFinish(n)
	case xName:
		v = m.canName(n)
	}
	m.fits[e] = v
	return v
}

func (m *machine) frame(e eid, next fid) fid {
	if e == eDone {
		return next
	}
	f := frame{e, next}
	if id, ok := m.findex[f]; ok {
		return id
	}
	if len(m.frames) >= maxFrames {
		panic(tooLarge{"its stacks take too much memory"})
	}
	m.frames = append(m.frames, f)
	id := fid(len(m.frames) - 1)
	m.findex[f] = id
	return id
}

// openFrame lists the terminals that can come first.
func (m *machine) openFrame(k fid) *opened {
	if o := m.open[k]; o != nil {
		return o
	}
	o := &opened{}
	seen := map[fid]bool{}
	stack := []fid{k}
	for len(stack) > 0 {
		k := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if seen[k] {
			continue
		}
		if m.opens++; m.opens > maxOpens || len(seen) > 4*maxThreads {
			panic(tooLarge{"too many things can follow"})
		}
		seen[k] = true
		if k == noFrame {
			o.end = true
			continue
		}
		f := m.frames[k]
		if !m.can(f.e) {
			continue
		}
		switch n := m.exprs[f.e]; n.kind {
		case xLex:
			r := rid(n.a)
			if r != rEps {
				o.threads = append(o.threads, thread{r: r, k: f.next})
			}
			if m.nodes[r].nullable {
				stack = append(stack, f.next)
			}
		case xSeq:
			if m.can(eid(n.b)) {
				stack = append(stack, m.frame(eid(n.a), m.frame(eid(n.b), f.next)))
			}
		case xAlt:
			for i := len(n.list) - 1; i >= 0; i-- {
				stack = append(stack, m.frame(n.list[i], f.next))
			}
		case xRepeat:
			if n.lo == 0 {
				stack = append(stack, f.next)
			}
			if n.hi != 0 {
				hi := n.hi
				if hi > 0 {
					hi--
				}
				rest := f.e
				if n.lo != 0 || n.hi > 0 {
					rest = m.times(eid(n.a), max(0, int(n.lo)-1), int(hi))
				}
				stack = append(stack, m.frame(eid(n.a), m.frame(rest, f.next)))
			}
		case xRule:
			stack = append(stack, m.frame(m.rules[n.a], f.next))
		case xMembers:
			o.loose = o.loose || n.hi < 0
			stack = m.openMembers(n, f.next, stack)
		case xName:
			stack = append(stack, m.openName(n, f.next, -1-m.namesOf(n)))
		}
	}
	o.threads = ordered(o.threads)
	m.open[k] = o
	m.held += 64 + 8*len(o.threads)
	return o
}

func ordered(t []thread) []thread {
	slices.SortFunc(t, func(a, b thread) int {
		return cmp.Or(cmp.Compare(a.r, b.r), cmp.Compare(a.k, b.k), cmp.Compare(a.c, b.c))
	})
	return slices.Compact(t)
}

// state takes threads in order.
func (m *machine) state(t []thread, end, loose bool) *state {
	if len(t) == 0 && !end {
		return dead
	}
	if len(t) > maxThreads {
		panic(tooLarge{"too many ways to read the same text"})
	}
	key := m.skey[:0]
	flags := byte(0)
	if end {
		flags |= 1
	}
	if loose {
		flags |= 2
	}
	key = append(key, flags)
	for _, x := range t {
		key = binary.LittleEndian.AppendUint32(key, uint32(x.r))
		key = binary.LittleEndian.AppendUint32(key, uint32(x.k))
		key = binary.LittleEndian.AppendUint32(key, uint32(x.c))
	}
	m.skey = key
	if s := m.states[string(key)]; s != nil {
		return s
	}
	s := &state{threads: slices.Clone(t), end: end, loose: loose}
	s.base = s
	p := int32(-1)
	for _, x := range t {
		s.naming = s.naming || m.naming(x.k)
		if q := m.partitionOf(x.r); p < 0 {
			p = q
		} else {
			p = m.refine(p, q)
		}
	}
	if p >= 0 {
		s.part = m.parts[p]
		s.next = make([]*state, len(s.part.first))
	}
	m.states[string(key)] = s
	if slices.ContainsFunc(t, func(x thread) bool { return x.c != unknown }) {
		plain := slices.Clone(t)
		for i := range plain {
			plain[i].c = unknown
		}
		s.base = m.state(ordered(plain), end, loose)
	}
	m.held += 160 + 3*len(key) + 8*len(s.next)
	return s
}

// after is the state after one byte, where the texts of names are not known.
func (m *machine) after(s *state, b byte) *state {
	if s.part == nil {
		return dead
	}
	c := s.part.class[b]
	if n := s.next[c]; n != nil {
		return n
	}
	var threads []thread
	end, loose := false, s.loose
	for _, t := range s.threads {
		r := m.step(t.r, b)
		if r == rEmpty {
			continue
		}
		if r != rEps {
			threads = append(threads, thread{r: r, k: t.k})
		}
		if m.nodes[r].nullable {
			o := m.openFrame(t.k)
			threads = append(threads, o.threads...)
			end, loose = end || o.end, loose || o.loose
		}
	}
	n := m.state(ordered(threads), end, loose)
	s.next[c] = n
	return n
}
