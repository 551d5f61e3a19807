package regex

import (
	"encoding/binary"
	"slices"
)

// ID is a regular expression over bytes in a store. Equal expressions have one id, so an id is
// also a state of the automaton formed by its derivatives (Brzozowski 1964; Owens, Reppy, Turon,
// "Regular-expression derivatives re-examined", 2009). States are created when a byte leads to
// them. With intersection and complement in the language, "any key except these" and "this pattern,
// with this length" need no special construction.
type ID uint32

const (
	rNone   ID = iota // unknown
	Empty             // no string
	Epsilon           // the empty string
	All               // every string
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
	plain    bool // made without And, Not and remainders: not empty unless it is Empty
	a, b     ID
	lo, hi   int32
	lit      string
	list     []ID
	mod      *modulus
}

// ByteSet is a set of bytes.
type ByteSet [4]uint64

func (s *ByteSet) has(b byte) bool { return s[b>>6]>>(b&63)&1 != 0 }
func (s *ByteSet) Add(b byte)      { s[b>>6] |= 1 << (b & 63) }
func (s *ByteSet) addRange(lo, hi byte) {
	for b := int(lo); b <= int(hi); b++ {
		s.Add(byte(b))
	}
}

// Partition groups bytes into classes that lead to the same state.
type Partition struct {
	Class [256]uint8
	First []byte // one byte per class
}

// Store holds expressions, each once.
type Store struct {
	nodes []regexNode
	index map[string]ID
	sets  []ByteSet
	setID map[ByteSet]ID

	parts   []*Partition
	partID  map[[256]uint8]int32
	refined map[[2]int32]int32
	part    []int32 // by node; -1: unknown
	next    [][]ID  // by node and class
	live    []uint8 // for nodes that are not plain: 0 unknown, 1 matches nothing, 2 matches something
	memo    map[uint64]ID

	limit     int // maximum number of nodes
	held      int // bytes of their keys and lists
	key       []byte
	requested int // derivatives computed, for the budget
	fuel      int
}

// MaxHeld bounds the bytes of keys and lists of a store. One state of a?a?a?... has a list as long as the pattern, and
// there are as many such states.
const MaxHeld = 192 << 20

// TooLarge is the panic of a store that has reached its limits.
type TooLarge struct{ What string }

// Large returns the value of a panic at a limit of the caller.
func Large(what string) TooLarge { return TooLarge{what} }

// NewStore returns a store of at most limit expressions.
func NewStore(limit int) *Store {
	x := &Store{index: map[string]ID{}, setID: map[ByteSet]ID{}, partID: map[[256]uint8]int32{}, refined: map[[2]int32]int32{},
		memo: map[uint64]ID{}, limit: limit, fuel: 1 << 62}
	x.push(regexNode{}) // rNone
	x.push(regexNode{kind: kEmpty, plain: true})
	x.push(regexNode{kind: kEps, nullable: true, plain: true})
	any := x.Set(ByteSet{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}) // becomes node 3: swapped below
	x.nodes[All] = regexNode{kind: kRepeat, nullable: true, plain: true, a: 4, hi: -1}
	x.nodes = append(x.nodes, regexNode{kind: kBytes, plain: true, a: 0})
	x.part, x.next, x.live = append(x.part, -1), append(x.next, nil), append(x.live, 0)
	for k, v := range x.index {
		if v == any {
			x.index[k] = 4
		}
	}
	x.index[string(x.keyOf(&x.nodes[All]))] = All
	return x
}

func (x *Store) push(n regexNode) ID {
	if len(x.nodes) >= x.limit {
		panic(TooLarge{"its regular expressions have too many states"})
	}
	x.nodes = append(x.nodes, n)
	x.part, x.next, x.live = append(x.part, -1), append(x.next, nil), append(x.live, 0)
	return ID(len(x.nodes) - 1)
}

func (x *Store) keyOf(n *regexNode) []byte {
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

func (x *Store) intern(n regexNode) ID {
	k := x.keyOf(&n)
	if id, ok := x.index[string(k)]; ok {
		return id
	}
	if x.held += len(k) + 4*len(n.list); x.held > MaxHeld {
		panic(TooLarge{"its states need too much memory"})
	}
	n.list = slices.Clone(n.list)
	id := x.push(n)
	x.index[string(k)] = id
	return id
}

// Set matches one byte of a set.
func (x *Store) Set(s ByteSet) ID {
	if s == (ByteSet{}) {
		return Empty
	}
	id, ok := x.setID[s]
	if !ok {
		id = ID(len(x.sets))
		x.sets = append(x.sets, s)
		x.setID[s] = id
	}
	return x.intern(regexNode{kind: kBytes, plain: true, a: id})
}

// Bytes matches one byte from lo to hi.
func (x *Store) Bytes(lo, hi byte) ID {
	var s ByteSet
	s.addRange(lo, hi)
	return x.Set(s)
}

// Literal matches a string.
func (x *Store) Literal(s string) ID {
	if s == "" {
		return Epsilon
	}
	return x.intern(regexNode{kind: kLit, plain: true, lit: s})
}

// Concat matches its parts in order.
func (x *Store) Concat(list ...ID) ID {
	out := Epsilon
	for i := len(list) - 1; i >= 0; i-- {
		out = x.concat2(list[i], out)
	}
	return out
}

func (x *Store) concat2(a, b ID) ID {
	switch {
	case a == Empty || b == Empty:
		return Empty
	case a == Epsilon:
		return b
	case b == Epsilon:
		return a
	}
	na, nb := &x.nodes[a], &x.nodes[b]
	if na.kind == kConcat {
		head, tail := na.a, na.b
		return x.concat2(head, x.concat2(tail, b))
	}
	if na.kind == kLit && nb.kind == kLit {
		return x.Literal(na.lit + nb.lit)
	}
	if na.kind == kLit && nb.kind == kConcat && x.nodes[nb.a].kind == kLit {
		tail := nb.b
		return x.concat2(x.Literal(na.lit+x.nodes[nb.a].lit), tail)
	}
	if a == All && b == All {
		return All
	}
	return x.intern(regexNode{kind: kConcat, a: a, b: b, nullable: na.nullable && nb.nullable, plain: na.plain && nb.plain})
}

// Or matches one of its parts.
func (x *Store) Or(list ...ID) ID {
	flat := make([]ID, 0, len(list))
	for _, r := range list {
		switch {
		case r == All:
			return All
		case r == Empty:
		case x.nodes[r].kind == kOr:
			flat = append(flat, x.nodes[r].list...)
		default:
			flat = append(flat, r)
		}
	}
	var s ByteSet
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
		flat = slices.DeleteFunc(flat, func(r ID) bool { return x.nodes[r].kind == kBytes })
		flat = append(flat, x.Set(s))
	}
	slices.Sort(flat)
	flat = slices.Compact(flat)
	nullable, plain := false, true
	for _, r := range flat {
		nullable, plain = nullable || x.nodes[r].nullable, plain && x.nodes[r].plain
	}
	if nullable && len(flat) > 1 { // another one matches the empty string too
		flat = slices.DeleteFunc(flat, func(r ID) bool {
			return r == Epsilon && slices.ContainsFunc(flat, func(o ID) bool { return o != Epsilon && x.nodes[o].nullable })
		})
	}
	switch len(flat) {
	case 0:
		return Empty
	case 1:
		return flat[0]
	}
	return x.intern(regexNode{kind: kOr, list: flat, nullable: nullable, plain: plain})
}

// And matches the texts that all of its parts match.
func (x *Store) And(list ...ID) ID {
	flat := make([]ID, 0, len(list))
	for _, r := range list {
		switch {
		case r == Empty:
			return Empty
		case r == All:
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
		return All
	case 1:
		return flat[0]
	}
	if flat[0] == Epsilon {
		if nullable {
			return Epsilon
		}
		return Empty
	}
	return x.intern(regexNode{kind: kAnd, list: flat, nullable: nullable})
}

// Not matches any string except those of a.
func (x *Store) Not(a ID) ID {
	switch {
	case a == Empty:
		return All
	case a == All:
		return Empty
	case x.nodes[a].kind == kNot:
		return x.nodes[a].a
	}
	return x.intern(regexNode{kind: kNot, a: a, nullable: !x.nodes[a].nullable})
}

// Repeat repeats a; hi -1 is unbounded.
func (x *Store) Repeat(a ID, lo, hi int) ID {
	n := &x.nodes[a]
	switch {
	case hi == 0 || a == Epsilon:
		return Epsilon
	case hi > 0 && lo > hi:
		return Empty
	case a == Empty && lo == 0:
		return Epsilon
	case a == Empty:
		return Empty
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

// Star repeats a any number of times.
func (x *Store) Star(a ID) ID { return x.Repeat(a, 0, -1) }

// Until matches any text that ends with mark and contains none of marks before that.
func (x *Store) Until(mark, marks ID) ID {
	return x.And(x.Concat(All, mark), x.Not(x.Concat(All, marks, x.Bytes(0, 255), All)))
}

// Opt matches a or the empty string.
func (x *Store) Opt(a ID) ID { return x.Or(Epsilon, a) }

// PartitionOf returns the number of a node's partition.
func (x *Store) PartitionOf(r ID) int32 {
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
		p = x.PartitionOf(n.a)
		if x.nodes[n.a].nullable {
			p = x.Refine(p, x.PartitionOf(n.b))
		}
	case kOr, kAnd:
		p = x.PartitionOf(n.list[0])
		for _, l := range n.list[1:] {
			p = x.Refine(p, x.PartitionOf(l))
		}
	case kNot, kRepeat:
		p = x.PartitionOf(n.a)
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
func (x *Store) partition(c [256]uint8) int32 {
	var to [256]int16
	p := &Partition{}
	for b := range 256 {
		if to[c[b]] == 0 {
			p.First = append(p.First, byte(b))
			to[c[b]] = int16(len(p.First))
		}
		p.Class[b] = uint8(to[c[b]] - 1)
	}
	if id, ok := x.partID[p.Class]; ok {
		return id
	}
	x.parts = append(x.parts, p)
	id := int32(len(x.parts) - 1)
	x.partID[p.Class] = id
	return id
}

// Refine returns the coarsest partition that is finer than a and b.
func (x *Store) Refine(a, b int32) int32 {
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
		k := [2]uint8{pa.Class[i], pb.Class[i]}
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

// Nullable reports whether r matches the empty string.
func (x *Store) Nullable(r ID) bool { return x.nodes[r].nullable }

// Size returns the number of expressions.
func (x *Store) Size() int { return len(x.nodes) }

// Held returns the bytes of the keys and lists of all expressions.
func (x *Store) Held() int { return x.held }

// Complemented returns a if r matches any string except a.
func (x *Store) Complemented(r ID) (a ID, ok bool) {
	return x.nodes[r].a, x.nodes[r].kind == kNot
}

// Budget lets the store panic with TooLarge after n more derivatives.
func (x *Store) Budget(n int) { x.fuel = x.requested + n }

// Spent returns the number of derivatives so far.
func (x *Store) Spent() int { return x.requested }

// Classes returns the classes of the bytes that may follow, by the result of PartitionOf or Refine.
func (x *Store) Classes(p int32) *Partition { return x.parts[p] }

// Step returns the state after one byte; Empty if no string continues this way.
func (x *Store) Step(r ID, b byte) ID {
	if r == Empty || r == Epsilon {
		return Empty
	}
	next := x.next[r]
	if next == nil {
		next = make([]ID, len(x.parts[x.PartitionOf(r)].First))
		x.next[r] = next
	}
	p := x.parts[x.part[r]]
	c := p.Class[b]
	if d := next[c]; d != rNone {
		return d
	}
	d := x.derive(r, p.First[c])
	if !x.Alive(d) {
		d = Empty
	}
	next[c] = d
	return d
}

func (x *Store) derive(r ID, b byte) ID {
	n := x.nodes[r]
	switch n.kind {
	case kBytes:
		if x.sets[n.a].has(b) {
			return Epsilon
		}
		return Empty
	case kLit:
		if n.lit[0] == b {
			return x.Literal(n.lit[1:])
		}
		return Empty
	case kEmpty, kEps:
		return Empty
	}
	key := uint64(r)<<8 | uint64(b)
	if d, ok := x.memo[key]; ok {
		return d
	}
	if x.requested++; x.requested > x.fuel {
		panic(TooLarge{"it takes too many steps"})
	}
	var d ID
	switch n.kind {
	case kConcat:
		d = x.concat2(x.derive(n.a, b), n.b)
		if x.nodes[n.a].nullable {
			d = x.Or(d, x.derive(n.b, b))
		}
	case kOr, kAnd:
		list := make([]ID, 0, len(n.list))
		for _, l := range n.list {
			e := x.derive(l, b)
			if n.kind == kAnd && e == Empty {
				list = append(list[:0], Empty)
				break
			}
			if e != Empty || n.kind == kAnd {
				list = append(list, e)
			}
		}
		if n.kind == kOr {
			d = x.Or(list...)
		} else {
			d = x.And(list...)
		}
	case kNot:
		d = x.Not(x.derive(n.a, b))
	case kRepeat:
		hi := int(n.hi)
		if hi > 0 {
			hi--
		}
		d = x.derive(n.a, b)
		if d != Empty {
			d = x.concat2(d, x.Repeat(n.a, max(0, int(n.lo)-1), hi))
		}
	case kMod:
		d = x.deriveMod(n.mod, b)
	}
	x.memo[key] = d
	return d
}

// Alive reports whether any string matches.
func (x *Store) Alive(r ID) bool {
	if x.nodes[r].plain {
		return r != Empty
	}
	if x.live[r] == 0 {
		x.search(r)
	}
	return x.live[r] == 2
}

// search looks for a string that r matches, depth first, and records the result for every visited
// state. If it finds one, all states on the path match some string; otherwise none of the visited
// states does.
func (x *Store) search(r ID) {
	type place struct {
		r ID
		c int
	}
	seen := map[ID]bool{r: true}
	path := []place{{r, 0}}
	order := []ID{r}
	found := x.nodes[r].nullable
	for len(path) > 0 && !found {
		at := &path[len(path)-1]
		p := x.parts[x.PartitionOf(at.r)]
		if at.c == len(p.First) {
			path = path[:len(path)-1]
			continue
		}
		d := x.derive(at.r, p.First[at.c])
		at.c++
		if seen[d] || d == Empty || x.live[d] == 1 {
			continue
		}
		if x.nodes[d].nullable || x.nodes[d].plain || x.live[d] == 2 {
			x.live[d] = 2
			found = true
			break
		}
		if len(seen) > maxSearch {
			panic(TooLarge{"deciding whether anything matches takes too many steps"})
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

// Strings counts the strings of r; -1: at least limit, or too many to count.
func (x *Store) Strings(r ID, limit int) int {
	total := 0
	for at := map[ID]int{r: 1}; len(at) > 0; {
		next := map[ID]int{}
		for r, n := range at {
			if x.nodes[r].nullable {
				total += n
			}
			if p := x.parts[x.PartitionOf(r)]; r != Epsilon {
				for b := range 256 {
					if to := x.Step(r, p.First[p.Class[b]]); to != Empty {
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

// Matches reports whether r matches a string.
func (x *Store) Matches(r ID, s string) bool {
	for i := range len(s) {
		if r = x.Step(r, s[i]); r == Empty {
			return false
		}
	}
	return x.nodes[r].nullable
}

// firstBytes returns the first bytes of the strings of r.
func (x *Store) firstBytes(r ID) (s ByteSet) {
	if r == Empty || r == Epsilon {
		return s
	}
	p := x.parts[x.PartitionOf(r)]
	for b := range 256 {
		if x.Step(r, p.First[p.Class[b]]) != Empty {
			s.Add(byte(b))
		}
	}
	return s
}
