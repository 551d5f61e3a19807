package grammar

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

// exprID is an expression of a context-free grammar whose terminals are regular expressions. Equal
// expressions have one id. A rule has a name and may be recursive.
type exprID uint32

const (
	eFail exprID = iota // matches nothing
	eDone               // the empty string
)

type exprKind uint8

const (
	xFail exprKind = iota
	xDone
	xLex     // a: a regular expression
	xSeq     // a, then b
	xAlt     // one of list
	xRepeat  // a, lo to hi times; hi -1: unbounded
	xRule    // a: a rule
	xMembers // members of an object: a: the object, b: its declared names so far, lo: number of its members, hi: its undeclared names
	xName    // the rest after an undeclared name. list[0]: the kind of undeclared member; a, b, lo, hi: as before it
)

type exprNode struct {
	kind   exprKind
	a, b   uint32
	lo, hi int32
	list   []exprID
}

// frame is a stack of expressions that must follow: the next one, then the rest. Stacks share their
// tails, and equal stacks have one id, so a state is a set of numbers.
type frame struct {
	e    exprID
	next frameID
}

type frameID uint32

const noFrame frameID = 0 // nothing follows: the text may end

// thread is one way to parse the text so far: a position inside a terminal, and a stack. Inside an
// undeclared name, it also has the name's text.
type thread struct {
	r regex.ID
	k frameID
	c nameID
}

// opened has the terminals that a frame can start with.
type opened struct {
	threads []thread
	end     bool // the text may end here
	loose   bool // depends on an unknown name, so fewer tokens may be allowed
}

// machine is a grammar under construction and in use: a pushdown automaton whose states are sets of
// threads, created when they are reached.
type machine struct {
	*regex.Store
	exprs  []exprNode
	eindex map[string]exprID
	rules  []exprID // body of each rule
	yields []uint8
	fits   map[exprID]bool

	frames []frame
	findex map[frame]frameID
	open   map[frameID]*opened
	opens  int
	states map[string]*state
	start  *state
	held   int // approximate bytes of states and masks
	ekey   []byte
	skey   []byte

	objects  []*members
	nameSets [][]uint64 // sets of declared names
	setIDs   map[string]uint32

	otherSets []otherNames // sets of undeclared names; the first is empty
	otherIDs  map[regex.ID]int32
	names     []nameByte
	nameIDs   map[nameByte]nameID

	thought     frameID  // the rest after a thought; noFrame: thoughts are not allowed
	annotations []string // places of keywords without effect

	insides    map[regex.ID]*inside
	plainChars map[regex.ID]bool // set of characters of a JSON string that includes every plain one, by terminal
	char       regex.ID          // a character of a JSON string, in any spelling
	shortChar  regex.ID          // the same in its shortest spelling
}

// state is a set of threads after some text. It is immutable except for cached results.
type state struct {
	threads []thread
	end     bool
	loose   bool // depends on an unknown name, so fewer tokens may be allowed
	naming  bool // a thread is inside an undeclared name
	part    *regex.Partition
	next    []*state
	mask    *Mask
	maybe   []int32 // tokens that depend on the earlier names
	known   *Mask   // mask plus the allowed tokens of maybe
	base    *state  // the same state without the texts of names; masks are cached there
}

var dead = &state{}

func newMachine(limit int) *machine {
	m := &machine{Store: regex.NewStore(limit), eindex: map[string]exprID{}, fits: map[exprID]bool{}}
	m.findex, m.open, m.states = map[frame]frameID{}, map[frameID]*opened{}, map[string]*state{}
	m.exprs = []exprNode{{kind: xFail}, {kind: xDone}}
	m.frames = []frame{{}}
	m.insides, m.setIDs = map[regex.ID]*inside{}, map[string]uint32{}
	m.otherSets, m.otherIDs = []otherNames{{names: regex.Empty}}, map[regex.ID]int32{}
	m.names, m.nameIDs = make([]nameByte, noText+1), map[nameByte]nameID{}
	m.char, m.shortChar = m.JSONChar(), regex.JSONText(m.Store).Class(regex.AnyRune)
	m.plainChars = map[regex.ID]bool{m.char: true, m.shortChar: true}
	return m
}

const (
	maxExprs   = 1 << 20
	maxFrames  = 1 << 20
	maxThreads = 1 << 14
	maxOpens   = 1 << 21
)

func (m *machine) expr(n exprNode) exprID {
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
		panic(regex.Large("it has too many parts"))
	}
	m.exprs = append(m.exprs, n)
	id := exprID(len(m.exprs) - 1)
	m.eindex[string(k)] = id
	return id
}

func (m *machine) lex(r regex.ID) exprID {
	switch {
	case r == regex.Epsilon:
		return eDone
	case !m.Alive(r):
		return eFail
	}
	return m.expr(exprNode{kind: xLex, a: uint32(r)})
}

func (m *machine) text(s string) exprID { return m.lex(m.Literal(s)) }

func (m *machine) seq(list ...exprID) exprID {
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

func (m *machine) seq2(a, b exprID) exprID {
	if n := m.exprs[a]; n.kind == xSeq {
		return m.seq2(exprID(n.a), m.seq2(exprID(n.b), b))
	}
	return m.expr(exprNode{kind: xSeq, a: uint32(a), b: uint32(b)})
}

func (m *machine) alt(list ...exprID) exprID {
	flat := make([]exprID, 0, len(list))
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
	return m.expr(exprNode{kind: xAlt, list: flat})
}

func (m *machine) times(e exprID, lo, hi int) exprID {
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
	return m.expr(exprNode{kind: xRepeat, a: uint32(e), lo: int32(lo), hi: int32(hi)})
}

func (m *machine) maybe(e exprID) exprID { return m.alt(e, eDone) }

// rule creates a rule whose expression is set later.
func (m *machine) rule() (name int, e exprID) {
	m.rules = append(m.rules, eFail)
	name = len(m.rules) - 1
	return name, m.expr(exprNode{kind: xRule, a: uint32(name)})
}

// finish builds a grammar from its start expression, and reports whether any text matches it.
func (m *machine) finish(start exprID) bool {
	m.settle()
	clear(m.fits)
	if !m.can(start) {
		return false
	}
	o := m.openFrame(m.frame(start, noFrame))
	m.start = m.state(o.threads, o.end, false)
	return true
}

// settle determines the rules that some text matches, starting with those that need no other rule.
func (m *machine) settle() {
	m.yields = make([]uint8, len(m.rules))
	users := make([][]int, len(m.rules))
	var uses func(e exprID, seen map[exprID]bool, rule int)
	uses = func(e exprID, seen map[exprID]bool, rule int) {
		if seen[e] {
			return
		}
		seen[e] = true
		n := &m.exprs[e]
		switch n.kind {
		case xRule:
			users[n.a] = append(users[n.a], rule)
		case xSeq:
			uses(exprID(n.a), seen, rule)
			uses(exprID(n.b), seen, rule)
		case xAlt:
			for _, a := range n.list {
				uses(a, seen, rule)
			}
		case xRepeat:
			uses(exprID(n.a), seen, rule)
		case xMembers:
			for _, e := range m.objects[n.a].parts() {
				uses(e, seen, rule)
			}
		}
	}
	work := make([]int, 0, len(m.rules))
	for i, body := range m.rules {
		uses(body, map[exprID]bool{}, i)
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

// can reports whether any text matches e, using the settled rules.
func (m *machine) can(e exprID) bool {
	if v, ok := m.fits[e]; ok {
		return v
	}
	n := m.exprs[e]
	v := false
	switch n.kind {
	case xDone, xLex:
		v = true
	case xSeq:
		v = m.can(exprID(n.a)) && m.can(exprID(n.b))
	case xAlt:
		v = slices.ContainsFunc(n.list, m.can)
	case xRepeat:
		v = n.lo == 0 || m.can(exprID(n.a))
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

func (m *machine) frame(e exprID, next frameID) frameID {
	if e == eDone {
		return next
	}
	f := frame{e, next}
	if id, ok := m.findex[f]; ok {
		return id
	}
	if len(m.frames) >= maxFrames {
		panic(regex.Large("its stacks take too much memory"))
	}
	m.frames = append(m.frames, f)
	id := frameID(len(m.frames) - 1)
	m.findex[f] = id
	return id
}

// openFrame lists the terminals that a frame can start with.
func (m *machine) openFrame(k frameID) *opened {
	if o := m.open[k]; o != nil {
		return o
	}
	o := &opened{}
	seen := map[frameID]bool{}
	stack := []frameID{k}
	for len(stack) > 0 {
		k := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if seen[k] {
			continue
		}
		if m.opens++; m.opens > maxOpens || len(seen) > 4*maxThreads {
			panic(regex.Large("too many things can follow"))
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
			r := regex.ID(n.a)
			if r != regex.Epsilon {
				o.threads = append(o.threads, thread{r: r, k: f.next})
			}
			if m.Nullable(r) {
				stack = append(stack, f.next)
			}
		case xSeq:
			if m.can(exprID(n.b)) {
				stack = append(stack, m.frame(exprID(n.a), m.frame(exprID(n.b), f.next)))
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
					rest = m.times(exprID(n.a), max(0, int(n.lo)-1), int(hi))
				}
				stack = append(stack, m.frame(exprID(n.a), m.frame(rest, f.next)))
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

// state returns the state of sorted threads.
func (m *machine) state(t []thread, end, loose bool) *state {
	if len(t) == 0 && !end {
		return dead
	}
	if len(t) > maxThreads {
		panic(regex.Large("too many ways to read the same text"))
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
		if q := m.PartitionOf(x.r); p < 0 {
			p = q
		} else {
			p = m.Refine(p, q)
		}
	}
	if p >= 0 {
		s.part = m.Classes(p)
		s.next = make([]*state, len(s.part.First))
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

// after returns the state after one byte, ignoring the texts of names.
func (m *machine) after(s *state, b byte) *state {
	if s.part == nil {
		return dead
	}
	c := s.part.Class[b]
	if n := s.next[c]; n != nil {
		return n
	}
	var threads []thread
	end, loose := false, s.loose
	for _, t := range s.threads {
		r := m.Step(t.r, b)
		if r == regex.Empty {
			continue
		}
		if r != regex.Epsilon {
			threads = append(threads, thread{r: r, k: t.k})
		}
		if m.Nullable(r) {
			o := m.openFrame(t.k)
			threads = append(threads, o.threads...)
			end, loose = end || o.end, loose || o.loose
		}
	}
	n := m.state(ordered(threads), end, loose)
	s.next[c] = n
	return n
}
