package speculate

// TextTokens is the maximum number of a sequence's newest tokens in the index.
const TextTokens = 1 << 16

// Text is an index of one sequence. Make it with NewText.
type Text struct {
	ring *ring
	seen int // tokens of the sequence that were added or skipped
	d    drafter
	copy copying
}

// NewText returns an empty index.
func NewText() *Text { return &Text{ring: newRing(TextTokens)} }

func (t *Text) Bytes() int64 { return t.ring.bytes() }

// BytesAt returns the memory of the index at a number of tokens of the sequence.
func (t *Text) BytesAt(tokens int) int64 {
	return max(t.Bytes(), ringBytes(room(tokens, TextTokens)))
}

// CatchUp adds tokens of the sequence up to the n-th, but not more than most; token returns each. It
// reports whether all are added.
func (t *Text) CatchUp(n, most int, token func(pos int) int32) bool {
	t.seen = max(t.seen, n-TextTokens) // older ones would be dropped at once
	t.ring.grow(min(n, TextTokens))
	for end := min(n, t.seen+most); t.seen < end; t.seen++ {
		t.ring.put(token(t.seen))
		t.copy.follow(t.ring)
	}
	return t.seen == n
}

// Lookup drafts up to most tokens after a match of least tokens or more. It distinguishes only
// matches below and from Long.
func (t *Text) Lookup(least, most int) Draft { return t.d.lookup(t.ring, least, most) }

// Suffix drafts from the sequence itself or from recent outputs of others; recent may be
// nil.
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

// Copied drafts the continuation of the text that the sequence repeats with changes.
func (t *Text) Copied(most int) Draft { return t.copy.draft(t.ring, most) }

// Recent holds the newest outputs of many sequences, separately for each owner: one owner's text
// never drafts for another. Its memory is bounded; the owner that has not added anything for
// longest is dropped first.
type Recent struct {
	most  int64
	bytes int64
	turn  uint64
	rings map[string]*owned
}

type owned struct {
	*ring
	turn uint64 // of the last addition
}

// RecentTokens is the maximum number of tokens kept per owner.
const RecentTokens = 1 << 18

// NewRecent returns an empty Recent with a limit in bytes.
func NewRecent(most int64) *Recent { return &Recent{most: most, rings: map[string]*owned{}} }

func (r *Recent) Bytes() int64 { return r.bytes }

// Add adds a finished output; token returns each of its n tokens.
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
