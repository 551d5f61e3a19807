package speculate

// TextTokens is how many of a sequence's newest tokens are indexed at most.
const TextTokens = 1 << 16

// Text is an index of one sequence. The zero value is not ready: NewText.
type Text struct {
	ring *ring
	seen int // tokens of the sequence that were added, or passed over
	d    drafter
	copy copying
}

// NewText is the index of a sequence that has so many tokens.
func NewText() *Text { return &Text{ring: newRing(TextTokens)} }

func (t *Text) Bytes() int64 { return t.ring.bytes() }

// Grown is what the index will take with so many tokens of the sequence.
func (t *Text) Grown(tokens int) int64 {
	return max(t.Bytes(), ringBytes(room(tokens, TextTokens)))
}

// Catch adds tokens of the sequence up to the n-th, no more than most of them at once; token
// gives each. It says whether all are there.
func (t *Text) Catch(n, most int, token func(pos int) int32) bool {
	t.seen = max(t.seen, n-TextTokens) // older ones would be forgotten at once
	t.ring.grow(min(n, TextTokens))
	for end := min(n, t.seen+most); t.seen < end; t.seen++ {
		t.ring.put(token(t.seen))
		t.copy.follow(t.ring)
	}
	return t.seen == n
}

// Lookup guesses at most so many tokens after a match of at least so many, of which 0 and Long
// are told apart.
func (t *Text) Lookup(least, most int) Draft { return t.d.lookup(t.ring, least, most) }

// Suffix guesses likewise, from the sequence itself or from recent outputs of others, which
// may be nil.
func (t *Text) Suffix(recent *Recent, owner string, least, most int) Draft {
	own := t.d.suffix(t.ring, t.ring, least, most)
	t.copy.begin(own.from, own.Matched)
	if recent == nil || recent.rings[owner] == nil {
		return own
	}
	other := t.d.suffix(recent.rings[owner].ring, t.ring, least, most)
	if other.score() > own.score() {
		other.Source = Others
		return other
	}
	return own
}

// Copied guesses that the sequence goes on with the text that it is a changed copy of.
func (t *Text) Copied(most int) Draft { return t.copy.draft(t.ring, most) }

// Recent are the newest outputs of many sequences, apart for each owner: what one has said
// guesses nothing for another. It holds at most so many bytes; the owner that has not added
// for longest goes first.
type Recent struct {
	most  int64
	bytes int64
	turn  uint64
	rings map[string]*owned
}

type owned struct {
	*ring
	turn uint64 // when it was added to last
}

// RecentTokens is how many of one owner are kept at most.
const RecentTokens = 1 << 18

// NewRecent holds at most so many bytes.
func NewRecent(most int64) *Recent { return &Recent{most: most, rings: map[string]*owned{}} }

func (r *Recent) Bytes() int64 { return r.bytes }

// Add takes an output that has ended; token gives each of its n tokens.
func (r *Recent) Add(owner string, n int, token func(i int) int32) {
	if n < 2 {
		return
	}
	o := r.rings[owner]
	if o == nil {
		o = &owned{ring: newRing(RecentTokens)}
		r.rings[owner] = o
	}
	r.turn++
	o.turn = r.turn
	r.bytes -= o.bytes()
	o.grow(min(int(o.n-o.oldest())+n+1, RecentTokens))
	for i := max(0, n-RecentTokens/2); i < n; i++ {
		o.put(token(i))
	}
	o.put(-1)
	r.bytes += o.bytes()
	for r.bytes > r.most {
		r.evict()
	}
}

func (r *Recent) evict() {
	var oldest string
	var found *owned
	for name, o := range r.rings {
		if found == nil || o.turn < found.turn {
			oldest, found = name, o
		}
	}
	r.bytes -= found.bytes()
	delete(r.rings, oldest)
}
