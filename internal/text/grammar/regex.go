package grammar

import (
	"encoding/binary"
	"slices"
)

// regexID is a regular expression over bytes in a store. Equal expressions have one id, so an id is
// also a state of the automaton formed by its derivatives (Brzozowski 1964; Owens, Reppy, Turon,
// "Regular-expression derivatives re-examined", 2009). States are created when a byte leads to
// them. With intersection and complement in the language, "any key except these" and "this pattern,
// with this length" need no special construction.
type regexID uint32

const (
	rNone  regexID = iota // unknown
	rEmpty                // no string
	rEps                  // the empty string
	rAll                  // every string
)

type rkind uint8

const (
	kEmpty rkind = iota
	kEps
	kBytes  // one byte of a set: a is its number
	kLit    // a string
	kConcat // a, then b
	kOr     // one of list
	kAnd    // all of list
	kNot    // any string except a
	kRepeat // a, lo to hi times; hi -1: unbounded
	kMod    // a decimal that is a multiple, see mod.go
)

type regexNode struct {
	kind     rkind
	nullable bool
	plain    bool // made without and, not, mod: not empty unless it is rEmpty
	a, b     regexID
	lo, hi   int32
	lit      string
	list     []regexID
	mod      *modulus
}

type byteSet [4]uint64

func (s *byteSet) has(b byte) bool { return s[b>>6]>>(b&63)&1 != 0 }
func (s *byteSet) add(b byte)      { s[b>>6] |= 1 << (b & 63) }
func (s *byteSet) addRange(lo, hi byte) {
	for b := int(lo); b <= int(hi); b++ {
		s.add(byte(b))
	}
}

// partition groups bytes into classes that lead to the same state.
type partition struct {
	class [256]uint8
	first []byte // one byte per class
}

type regexes struct {
	nodes []regexNode
	index map[string]regexID
	sets  []byteSet
	setID map[byteSet]regexID

	parts   []*partition
	partID  map[[256]uint8]int32
	refined map[[2]int32]int32
	part    []int32     // by node; -1: unknown
	next    [][]regexID // by node and class
	live    []uint8     // for nodes that are not plain: 0 unknown, 1 matches nothing, 2 matches something
	memo    map[uint64]regexID

	limit int // maximum number of nodes
	key   []byte
	asked int // derivatives computed, for the budget
	fuel  int
}

// tooLarge is the panic of a store that has reached its limits. The entry points of the package
// convert it to ErrTooComplex.
type tooLarge struct{ what string }

func newRegexes(limit int) *regexes {
	x := &regexes{index: map[string]regexID{}, setID: map[byteSet]regexID{}, partID: map[[256]uint8]int32{}, refined: map[[2]int32]int32{}, memo: map[uint64]regexID{}, limit: limit, fuel: 1 << 62}
	x.push(regexNode{}) // rNone
	x.push(regexNode{kind: kEmpty, plain: true})
	x.push(regexNode{kind: kEps, nullable: true, plain: true})
	any := x.set(byteSet{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}) // becomes node 3: swapped below
	x.nodes[rAll] = regexNode{kind: kRepeat, nullable: true, plain: true, a: 4, hi: -1}
	x.nodes = append(x.nodes, regexNode{kind: kBytes, plain: true, a: 0})
	x.part, x.next, x.live = append(x.part, -1), append(x.next, nil), append(x.live, 0)
	for k, v := range x.index {
		if v == any {
			x.index[k] = 4
		}
	}
	x.index[string(x.keyOf(&x.nodes[rAll]))] = rAll
	return x
}

func (x *regexes) push(n regexNode) regexID {
	if len(x.nodes) >= x.limit {
		panic(tooLarge{"its regular expressions have too many states"})
	}
	x.nodes = append(x.nodes, n)
	x.part, x.next, x.live = append(x.part, -1), append(x.next, nil), append(x.live, 0)
	return regexID(len(x.nodes) - 1)
}

func (x *regexes) keyOf(n *regexNode) []byte {
	k := append(x.key[:0], byte(n.kind))
	k = binary.LittleEndian.AppendUint32(k, uint32(n.a))
	k = binary.LittleEndian.AppendUint32(k, uint32(n.b))
	k = binary.LittleEndian.AppendUint32(k, uint32(n.lo))
	k = binary.LittleEndian.AppendUint32(k, uint32(n.hi))
	for _, r := range n.list {
		k = binary.LittleEndian.AppendUint32(k, uint32(r))
	}
	if n.mod != nil {
		k = n.mod.appendKey(k)
	}
	k = append(k, n.lit...)
	x.key = k
	return k
}

func (x *regexes) intern(n regexNode) regexID {
	k := x.keyOf(&n)
	if id, ok := x.index[string(k)]; ok {
		return id
	}
	n.list = slices.Clone(n.list)
	id := x.push(n)
	x.index[string(k)] = id
	return id
}

func (x *regexes) set(s byteSet) regexID {
	if s == (byteSet{}) {
		return rEmpty
	}
	id, ok := x.setID[s]
	if !ok {
		id = regexID(len(x.sets))
		x.sets = append(x.sets, s)
		x.setID[s] = id
	}
	return x.intern(regexNode{kind: kBytes, plain: true, a: id})
}

func (x *regexes) bytes(lo, hi byte) regexID {
	var s byteSet
	s.addRange(lo, hi)
	return x.set(s)
}

func (x *regexes) literal(s string) regexID {
	if s == "" {
		return rEps
	}
	return x.intern(regexNode{kind: kLit, plain: true, lit: s})
}

func (x *regexes) concat(list ...regexID) regexID {
	out := rEps
	for i := len(list) - 1; i >= 0; i-- {
		out = x.concat2(list[i], out)
	}
	return out
}

func (x *regexes) concat2(a, b regexID) regexID {
	switch {
	case a == rEmpty || b == rEmpty:
		return rEmpty
	case a == rEps:
		return b
	case b == rEps:
		return a
	}
	na, nb := &x.nodes[a], &x.nodes[b]
	if na.kind == kConcat {
		head, tail := na.a, na.b
		return x.concat2(head, x.concat2(tail, b))
	}
	if na.kind == kLit && nb.kind == kLit {
		return x.literal(na.lit + nb.lit)
	}
	if na.kind == kLit && nb.kind == kConcat && x.nodes[nb.a].kind == kLit {
		tail := nb.b
		return x.concat2(x.literal(na.lit+x.nodes[nb.a].lit), tail)
	}
	if a == rAll && b == rAll {
		return rAll
	}
	return x.intern(regexNode{kind: kConcat, a: a, b: b, nullable: na.nullable && nb.nullable, plain: na.plain && nb.plain})
}

func (x *regexes) or(list ...regexID) regexID {
	flat := make([]regexID, 0, len(list))
	for _, r := range list {
		switch {
		case r == rAll:
			return rAll
		case r == rEmpty:
		case x.nodes[r].kind == kOr:
			flat = append(flat, x.nodes[r].list...)
		default:
			flat = append(flat, r)
		}
	}
	var s byteSet
	sets := 0
	for _, r := range flat {
		if n := &x.nodes[r]; n.kind == kBytes {
			sets++
			for i, w := range x.sets[n.a] {
				s[i] |= w
			}
		}
	}
	if sets > 1 {
		flat = slices.DeleteFunc(flat, func(r regexID) bool { return x.nodes[r].kind == kBytes })
		flat = append(flat, x.set(s))
	}
	slices.Sort(flat)
	flat = slices.Compact(flat)
	nullable, plain := false, true
	for _, r := range flat {
		nullable, plain = nullable || x.nodes[r].nullable, plain && x.nodes[r].plain
	}
	if nullable && len(flat) > 1 { // another one matches the empty string too
		flat = slices.DeleteFunc(flat, func(r regexID) bool {
			return r == rEps && slices.ContainsFunc(flat, func(o regexID) bool { return o != rEps && x.nodes[o].nullable })
		})
	}
	switch len(flat) {
	case 0:
		return rEmpty
	case 1:
		return flat[0]
	}
	return x.intern(regexNode{kind: kOr, list: flat, nullable: nullable, plain: plain})
}

func (x *regexes) and(list ...regexID) regexID {
	flat := make([]regexID, 0, len(list))
	for _, r := range list {
		switch {
		case r == rEmpty:
			return rEmpty
		case r == rAll:
		case x.nodes[r].kind == kAnd:
			flat = append(flat, x.nodes[r].list...)
		default:
			flat = append(flat, r)
		}
	}
	slices.Sort(flat)
	flat = slices.Compact(flat)
	nullable := true
	for _, r := range flat {
		nullable = nullable && x.nodes[r].nullable
	}
	switch len(flat) {
	case 0:
		return rAll
	case 1:
		return flat[0]
	}
	if flat[0] == rEps {
		if nullable {
			return rEps
		}
		return rEmpty
	}
	return x.intern(regexNode{kind: kAnd, list: flat, nullable: nullable})
}

func (x *regexes) not(a regexID) regexID {
	switch {
	case a == rEmpty:
		return rAll
	case a == rAll:
		return rEmpty
	case x.nodes[a].kind == kNot:
		return x.nodes[a].a
	}
	return x.intern(regexNode{kind: kNot, a: a, nullable: !x.nodes[a].nullable})
}

// repeat repeats a; hi -1 is unbounded.
func (x *regexes) repeat(a regexID, lo, hi int) regexID {
	n := &x.nodes[a]
	switch {
	case hi == 0 || a == rEps:
		return rEps
	case hi > 0 && lo > hi:
		return rEmpty
	case a == rEmpty && lo == 0:
		return rEps
	case a == rEmpty:
		return rEmpty
	case lo == 1 && hi == 1:
		return a
	}
	if n.nullable {
		lo = 0
	}
	if n.kind == kRepeat && n.lo == 0 && n.hi < 0 {
		return a
	}
	return x.intern(regexNode{kind: kRepeat, a: a, lo: int32(lo), hi: int32(hi), nullable: lo == 0, plain: n.plain})
}

func (x *regexes) star(a regexID) regexID { return x.repeat(a, 0, -1) }
func (x *regexes) opt(a regexID) regexID  { return x.or(rEps, a) }

// partitionOf returns the number of a node's partition.
func (x *regexes) partitionOf(r regexID) int32 {
	if p := x.part[r]; p >= 0 {
		return p
	}
	n := x.nodes[r]
	var p int32
	switch n.kind {
	case kBytes:
		var c [256]uint8
		s := &x.sets[n.a]
		for b := range 256 {
			if s.has(byte(b)) {
				c[b] = 1
			}
		}
		p = x.partition(c)
	case kLit:
		var c [256]uint8
		c[n.lit[0]] = 1
		p = x.partition(c)
	case kConcat:
		p = x.partitionOf(n.a)
		if x.nodes[n.a].nullable {
			p = x.refine(p, x.partitionOf(n.b))
		}
	case kOr, kAnd:
		p = x.partitionOf(n.list[0])
		for _, l := range n.list[1:] {
			p = x.refine(p, x.partitionOf(l))
		}
	case kNot, kRepeat:
		p = x.partitionOf(n.a)
	case kMod:
		var c [256]uint8
		for d := range 10 {
			c['0'+d] = uint8(d + 1)
		}
		c['.'], c['-'] = 11, 12
		p = x.partition(c)
	default:
		p = x.partition([256]uint8{})
	}
	x.part[r] = p
	return p
}

// partition numbers classes in the order of their bytes.
func (x *regexes) partition(c [256]uint8) int32 {
	var to [256]int16
	p := &partition{}
	for b := range 256 {
		if to[c[b]] == 0 {
			p.first = append(p.first, byte(b))
			to[c[b]] = int16(len(p.first))
		}
		p.class[b] = uint8(to[c[b]] - 1)
	}
	if id, ok := x.partID[p.class]; ok {
		return id
	}
	x.parts = append(x.parts, p)
	id := int32(len(x.parts) - 1)
	x.partID[p.class] = id
	return id
}

func (x *regexes) refine(a, b int32) int32 {
	if a == b {
		return a
	}
	if a > b {
		a, b = b, a
	}
	if id, ok := x.refined[[2]int32{a, b}]; ok {
		return id
	}
	pa, pb := x.parts[a], x.parts[b]
	seen := map[[2]uint8]uint8{}
	var c [256]uint8
	for i := range 256 {
		k := [2]uint8{pa.class[i], pb.class[i]}
		n, ok := seen[k]
		if !ok {
			n = uint8(len(seen))
			seen[k] = n
		}
		c[i] = n
	}
	id := x.partition(c)
	x.refined[[2]int32{a, b}] = id
	return id
}

// step returns the state after one byte; rEmpty if no string continues this way.
func (x *regexes) step(r regexID, b byte) regexID {
	if r == rEmpty || r == rEps {
		return rEmpty
	}
	next := x.next[r]
	if next == nil {
		next = make([]regexID, len(x.parts[x.partitionOf(r)].first))
		x.next[r] = next
	}
	p := x.parts[x.part[r]]
	c := p.class[b]
	if d := next[c]; d != rNone {
		return d
	}
	d := x.derive(r, p.first[c])
	if !x.alive(d) {
		d = rEmpty
	}
	next[c] = d
	return d
}

func (x *regexes) derive(r regexID, b byte) regexID {
	n := x.nodes[r]
	switch n.kind {
	case kBytes:
		if x.sets[n.a].has(b) {
			return rEps
		}
		return rEmpty
	case kLit:
		if n.lit[0] == b {
			return x.literal(n.lit[1:])
		}
		return rEmpty
	case kEmpty, kEps:
		return rEmpty
	}
	key := uint64(r)<<8 | uint64(b)
	if d, ok := x.memo[key]; ok {
		return d
	}
	if x.asked++; x.asked > x.fuel {
		panic(tooLarge{"it takes too many steps"})
	}
	var d regexID
	switch n.kind {
	case kConcat:
		d = x.concat2(x.derive(n.a, b), n.b)
		if x.nodes[n.a].nullable {
			d = x.or(d, x.derive(n.b, b))
		}
	case kOr, kAnd:
		list := make([]regexID, 0, len(n.list))
		for _, l := range n.list {
			e := x.derive(l, b)
			if n.kind == kAnd && e == rEmpty {
				list = append(list[:0], rEmpty)
				break
			}
			if e != rEmpty || n.kind == kAnd {
				list = append(list, e)
			}
		}
		if n.kind == kOr {
			d = x.or(list...)
		} else {
			d = x.and(list...)
		}
	case kNot:
		d = x.not(x.derive(n.a, b))
	case kRepeat:
		hi := int(n.hi)
		if hi > 0 {
			hi--
		}
		d = x.derive(n.a, b)
		if d != rEmpty {
			d = x.concat2(d, x.repeat(n.a, max(0, int(n.lo)-1), hi))
		}
	case kMod:
		d = x.deriveMod(n.mod, b)
	}
	x.memo[key] = d
	return d
}

// alive reports whether any string matches.
func (x *regexes) alive(r regexID) bool {
	if x.nodes[r].plain {
		return r != rEmpty
	}
	if x.live[r] == 0 {
		x.search(r)
	}
	return x.live[r] == 2
}

// search looks for a string that r matches, depth first, and records the result for every visited
// state. If it finds one, all states on the path match some string; otherwise none of the visited
// states does.
func (x *regexes) search(r regexID) {
	type place struct {
		r regexID
		c int
	}
	seen := map[regexID]bool{r: true}
	path := []place{{r, 0}}
	order := []regexID{r}
	found := x.nodes[r].nullable
	for len(path) > 0 && !found {
		at := &path[len(path)-1]
		p := x.parts[x.partitionOf(at.r)]
		if at.c == len(p.first) {
			path = path[:len(path)-1]
			continue
		}
		d := x.derive(at.r, p.first[at.c])
		at.c++
		if seen[d] || d == rEmpty || x.live[d] == 1 {
			continue
		}
		if x.nodes[d].nullable || x.nodes[d].plain || x.live[d] == 2 {
			x.live[d] = 2
			found = true
			break
		}
		if len(seen) > maxSearch {
			panic(tooLarge{"deciding whether anything matches takes too many steps"})
		}
		seen[d] = true
		order = append(order, d)
		path = append(path, place{d, 0})
	}
	if found {
		x.live[r] = 2
		for _, p := range path {
			x.live[p.r] = 2
		}
		return
	}
	for _, o := range order {
		x.live[o] = 1
	}
}

const maxSearch = 50_000

// strings counts the strings of r; -1: at least limit, or too many to count.
func (x *regexes) strings(r regexID, limit int) int {
	total := 0
	for at := map[regexID]int{r: 1}; len(at) > 0; {
		next := map[regexID]int{}
		for r, n := range at {
			if x.nodes[r].nullable {
				total += n
			}
			if p := x.parts[x.partitionOf(r)]; r != rEps {
				for b := range 256 {
					if to := x.step(r, p.first[p.class[b]]); to != rEmpty {
						next[to] += n
					}
				}
			}
		}
		if total >= limit || len(next) > maxStates {
			return -1
		}
		for to := range next {
			next[to] = min(next[to], limit)
		}
		at = next
	}
	return total
}

const maxStates = 1000

// matches reports whether r matches a string.
func (x *regexes) matches(r regexID, s string) bool {
	for i := range len(s) {
		if r = x.step(r, s[i]); r == rEmpty {
			return false
		}
	}
	return x.nodes[r].nullable
}

// firstBytes returns the first bytes of the strings of r.
func (x *regexes) firstBytes(r regexID) (s byteSet) {
	if r == rEmpty || r == rEps {
		return s
	}
	p := x.parts[x.partitionOf(r)]
	for b := range 256 {
		if x.step(r, p.first[p.class[b]]) != rEmpty {
			s.add(byte(b))
		}
	}
	return s
}
