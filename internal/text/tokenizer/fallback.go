package tokenizer

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/text/tokenizer/alphabet"
)

// fallbackByte parses a byte token, <0x00> to <0xFF>.
func fallbackByte(s string) (byte, bool) {
	if len(s) != 6 || s[:3] != "<0x" || s[5] != '>' {
		return 0, false
	}
	v, err := strconv.ParseUint(s[3:5], 16, 8)
	return byte(v), err == nil
}

func fallbackBytes(s string) string {
	if b, ok := fallbackByte(s); ok {
		return string([]byte{b})
	}
	return s
}

// fallbackStage joins runs of byte tokens into characters. A byte that belongs to no
// character becomes one U+FFFD. (The library turns the whole run into U+FFFD, one per
// byte, if any part is invalid; see the package comment.)
//
// With early, characters are emitted when they are complete. Otherwise a run is emitted
// as one unit at its end, for later components that depend on units.
type fallbackStage struct {
	early bool
	held  []byte
	run   strings.Builder
}

func (f *fallbackStage) push(s string, out func(string)) {
	if b, ok := fallbackByte(s); ok {
		f.held = append(f.held, b)
		f.drain(out, false)
		return
	}
	f.flush(out)
	out(s)
}

func (f *fallbackStage) flush(out func(string)) {
	f.drain(out, true)
	if f.run.Len() > 0 {
		out(f.run.String())
		f.run.Reset()
	}
}

func (f *fallbackStage) drain(out func(string), last bool) {
	at := 0
	for at < len(f.held) {
		n, state := alphabet.LeadingRune(f.held[at:])
		switch state {
		case alphabet.Complete:
			f.run.Write(f.held[at : at+n])
		case alphabet.Incomplete:
			if !last {
				goto wait
			}
			fallthrough
		case alphabet.Broken:
			for range n {
				f.run.WriteRune(utf8.RuneError)
			}
		}
		at += n
	}
wait:
	f.held = append(f.held[:0], f.held[at:]...)
	if f.early && f.run.Len() > 0 {
		out(f.run.String())
		f.run.Reset()
	}
}

// metaspaceStage turns marks into spaces. It removes those of the first token, which the encoder
// added, unless the scheme is "never".
type metaspaceStage struct {
	m     metaspace
	fused bool // all units are parts of the first token
	later bool
}

func (x *metaspaceStage) push(s string, out func(string)) {
	mark := " "
	if !x.later && x.m.scheme != never {
		mark = ""
	}
	x.later = !x.fused
	out(strings.ReplaceAll(s, x.m.mark, mark))
}

func (x *metaspaceStage) flush(func(string)) {}

// stripStage removes up to start copies of char from the beginning and up to stop copies from the
// end.
type stripStage struct {
	char        string
	start, stop int

	begun bool   // past the beginning
	held  string // copies of char that may be at the end
}

func parseStrip(o object) stripStage {
	var s stripStage
	r := o.at("content").oneRune()
	s.char = string(r)
	s.start = o.at("start").count(1 << 16)
	s.stop = o.at("stop").count(1 << 16)
	return s
}

func (s stripStage) whole(text string) string {
	for range s.start {
		if !strings.HasPrefix(text, s.char) {
			break
		}
		text = text[len(s.char):]
	}
	for range s.stop {
		if !strings.HasSuffix(text, s.char) {
			break
		}
		text = text[:len(text)-len(s.char)]
	}
	return text
}

func (s *stripStage) push(text string, out func(string)) {
	for !s.begun && text != "" {
		if s.start == 0 || !strings.HasPrefix(text, s.char) {
			s.begun = true
			break
		}
		text = text[len(s.char):]
		s.start--
	}
	text = s.held + text
	cut := len(text)
	for range s.stop {
		if !strings.HasSuffix(text[:cut], s.char) {
			break
		}
		cut -= len(s.char)
	}
	s.held = text[cut:]
	if cut > 0 {
		out(text[:cut])
	}
}

func (s *stripStage) flush(func(string)) { s.held = "" }
