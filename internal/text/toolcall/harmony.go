package toolcall

import "strings"

// Harmony is the form of gpt-oss. An answer is a list of messages, of which the prompt opened the
// first:
//
//	<|channel|>CHANNEL [to=RECIPIENT] [<|constrain|>json]<|message|>TEXT<|end|><|start|>assistant...
//
// The channel analysis is a thought. A message to functions.NAME is a call, whose text is its
// arguments. Other messages are text. The recipient may also precede the channel. Text without a
// header is text: a grammar may have forced it.
const (
	harmonyStart     = "<|start|>"
	harmonyChannel   = "<|channel|>"
	harmonyMessage   = "<|message|>"
	harmonyConstrain = "<|constrain|>"
	functionsPrefix  = "functions."
	harmonyAnalysis  = "analysis" // the channel of thoughts
)

// HarmonyTurn ends a prompt. After it a message of the answer begins with a header: HarmonyText that of
// text, HarmonyJSON that of JSON.
const (
	HarmonyTurn = harmonyStart + "assistant"
	HarmonyText = harmonyChannel + "final" + harmonyMessage
	HarmonyJSON = harmonyChannel + "final " + harmonyConstrain + "json" + harmonyMessage
)

var (
	harmonyEnds = []string{"<|end|>", "<|return|>", "<|call|>"}
	// harmonyBreaks end a message, also one that lacks its end.
	harmonyBreaks = append(harmonyEnds[:len(harmonyEnds):len(harmonyEnds)], harmonyStart, harmonyChannel)
)

// maxHarmonyHeader bounds the text that is held while a header has no end.
const maxHarmonyHeader = 1 << 10

type harmony struct {
	tools   map[string]Tool
	at      harmonyPlace
	buf     string
	name    string // of the call that begins
	w       writer // of the newest call's arguments
	calls   int
	text    bool   // text was emitted
	pending string // line break before the next message with text
	final   bool
	cut     bool
}

type harmonyPlace uint8

const (
	harmonyBetween harmonyPlace = iota // before a header, or text without one
	harmonyHeader
	harmonyText
	harmonyThought
	harmonyCall      // before the arguments
	harmonyArguments // in them
	harmonySkip      // after them, before the end of the message
)

func (h *harmony) marks(token string) bool {
	switch token {
	case harmonyStart, harmonyChannel, harmonyMessage, harmonyConstrain:
		return true
	}
	for _, end := range harmonyEnds {
		if token == end {
			return true
		}
	}
	return false
}

func (h *harmony) push(text string) (out []Piece) {
	h.buf += text
	for h.step(&out) {
	}
	return out
}

func (h *harmony) flush(cut bool) []Piece {
	h.final, h.cut = true, cut
	out := h.push("")
	h.buf = ""
	return out
}

func (h *harmony) held() int { return len(h.pending) + len(h.buf) }

func (h *harmony) made() int { return h.calls }

func (h *harmony) open() bool { return h.at == harmonyCall || h.at == harmonyArguments }

// step advances within one state; false: more text is needed.
func (h *harmony) step(out *[]Piece) bool {
	switch h.at {
	case harmonyBetween:
		left := strings.TrimLeft(h.buf, blanks)
		switch v := startsWith(left, []string{harmonyStart, harmonyChannel}, h.final); {
		case left == "" && h.final, v == unsure || left == "" && h.calls > 0:
			return false
		case v == yes:
			h.buf, h.at = left, harmonyHeader
		case left == "":
			return false
		default:
			h.at = harmonyText
		}
		return true
	case harmonyHeader:
		return h.header()
	case harmonyCall:
		return h.begin(out)
	case harmonyArguments:
		return h.arguments(out)
	}
	return h.body(out)
}

// header reads a header. Without an end in time it is text.
func (h *harmony) header() bool {
	head, rest, whole := strings.Cut(h.buf, harmonyMessage)
	switch {
	case len(head) > maxHarmonyHeader+len(harmonyMessage) || whole && len(head) > maxHarmonyHeader:
		h.at, h.buf = harmonyText, h.buf[len("<|"):]
		return true
	case !whole:
		return false // at its end, an answer was cut in the header
	}
	channel := channelOf(head)
	_, to, _ := strings.Cut(head, "to=")
	name, function := strings.CutPrefix(word(to), functionsPrefix)
	h.buf = rest
	switch _, known := h.tools[name]; {
	case function && known:
		h.at, h.w = harmonyCall,
			writer{ends: harmonyBreaks, opens: func(s string, final bool) verdict { return startsWith(s, harmonyBreaks, final) }}
		h.name = name
	case channel == harmonyAnalysis:
		h.at = harmonyThought
	default:
		h.at = harmonyText
		if h.pending = ""; h.text {
			h.pending = "\n"
		}
	}
	return true
}

// channelOf returns the channel that a header names, or "".
func channelOf(head string) string {
	_, channel, _ := strings.Cut(head, harmonyChannel)
	return word(channel)
}

// harmonyBreak finds the first mark that ends a message; "": there is none, and the last keep bytes may be the
// start of one.
func harmonyBreak(s string) (at int, mark string, keep int) {
	at = len(s)
	for _, m := range harmonyBreaks {
		if i := strings.Index(s, m); i >= 0 && i < at {
			at, mark = i, m
		}
		keep = max(keep, partial(s, m))
	}
	return at, mark, keep
}

// word returns the text up to white space or a mark.
func word(s string) string {
	s = strings.TrimLeft(s, blanks)
	if end := strings.IndexAny(s, blanks+"<"); end >= 0 {
		s = s[:end]
	}
	return s
}

// begin emits a call when its arguments start.
func (h *harmony) begin(out *[]Piece) bool {
	left := strings.TrimLeft(h.buf, blanks)
	v := startsWith(left, harmonyBreaks, h.final)
	if (left == "" || v == unsure) && !h.final {
		return false
	}
	if left == "" && h.cut {
		return false // nothing of the arguments is known
	}
	call := Call{Name: h.name}
	if h.at, h.buf = harmonyArguments, left; !strings.HasPrefix(left, "{") {
		call.Arguments, h.at = "{}", harmonySkip
	}
	h.calls++
	*out = append(*out, Piece{Call: &call})
	return true
}

func (h *harmony) arguments(out *[]Piece) bool {
	text, n, done := h.w.take(h.buf, h.final)
	h.buf = h.buf[n:]
	if done = done || h.final && !h.cut; done {
		text += h.w.end()
		h.at = harmonySkip
	}
	if text != "" {
		*out = append(*out, Piece{Arguments: text})
	}
	return done
}

// body passes on the text of a message, or skips the text after the arguments of a call.
func (h *harmony) body(out *[]Piece) bool {
	at, mark, keep := harmonyBreak(h.buf)
	if mark == "" && !h.final {
		at -= keep
	}
	if s := h.buf[:at]; s != "" {
		switch h.at {
		case harmonyText:
			*out = append(*out, Piece{Text: h.pending + s})
			h.pending, h.text = "", true
		case harmonyThought:
			*out = append(*out, Piece{Thought: s})
		}
	}
	h.buf = h.buf[at:]
	if mark == "" {
		return false
	}
	if mark != harmonyStart && mark != harmonyChannel {
		h.buf = h.buf[len(mark):]
	}
	h.at = harmonyBetween
	return true
}
