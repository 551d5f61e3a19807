package safetensors

import (
	"encoding/json"
	"fmt"
	"math"
	"unicode/utf8"
)

// scanner parses the subset of JSON in safetensors headers: objects, arrays of whole numbers, and
// strings. Unlike encoding/json it bounds every name before allocating it, detects duplicate keys,
// and refuses unknown fields.
type scanner struct {
	data []byte
	at   int
}

func (s *scanner) errorf(format string, args ...any) error {
	return fmt.Errorf("header byte %d: "+format, append([]any{s.at}, args...)...)
}

func (s *scanner) space() {
	for s.at < len(s.data) {
		switch s.data[s.at] {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return
		}
	}
}

// next returns the next byte that is not white space without consuming it; 0 at the end.
func (s *scanner) next() byte {
	s.space()
	if s.at == len(s.data) {
		return 0
	}
	return s.data[s.at]
}

func (s *scanner) expect(c byte) error {
	if got := s.next(); got != c {
		if s.at == len(s.data) {
			return s.errorf("ends where %q should be", c)
		}
		return s.errorf("%q where %q should be", got, c)
	}
	s.at++
	return nil
}

// list calls each for every element between open and shut.
func (s *scanner) list(open, shut byte, each func() error) error {
	if err := s.expect(open); err != nil {
		return err
	}
	if s.next() == shut {
		s.at++
		return nil
	}
	for {
		if err := each(); err != nil {
			return err
		}
		if s.next() == shut {
			s.at++
			return nil
		}
		if err := s.expect(','); err != nil {
			return err
		}
	}
}

// object calls field with every key, positioned at its value.
func (s *scanner) object(maxKey int, field func(key string) error) error {
	return s.list('{', '}', func() error {
		key, err := s.text(maxKey)
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		return field(key)
	})
}

// text reads and decodes a string of limited size (most, in bytes).
func (s *scanner) text(most int) (string, error) {
	// An escape takes up to six bytes for each byte of text.
	quoted, err := s.quoted(6*most + 2)
	if err != nil {
		return "", err
	}
	var v string
	if err := json.Unmarshal(quoted, &v); err != nil {
		return "", s.errorf("bad string: %v", err)
	}
	if len(v) > most {
		return "", s.errorf("string of %d bytes, more than %d", len(v), most)
	}
	return v, nil
}

// skipText skips a string of any length.
func (s *scanner) skipText() error {
	quoted, err := s.quoted(len(s.data))
	if err == nil && !json.Valid(quoted) {
		err = s.errorf("bad string")
	}
	return err
}

// quoted returns a string as written, quotes included, without copying it. most limits its bytes.
func (s *scanner) quoted(most int) ([]byte, error) {
	if err := s.expect('"'); err != nil {
		return nil, err
	}
	for begin := s.at - 1; s.at < len(s.data) && s.at-begin < most; s.at++ {
		switch s.data[s.at] {
		case '"':
			s.at++
			if q := s.data[begin:s.at]; utf8.Valid(q) {
				return q, nil
			}
			return nil, s.errorf("string is not UTF-8")
		case '\\':
			s.at++
		}
	}
	if s.at < len(s.data) {
		return nil, s.errorf("string longer than %d bytes", most)
	}
	s.at = len(s.data)
	return nil, s.errorf("ends inside a string")
}

// whole reads a whole number, at least 0, in plain digits.
func (s *scanner) whole() (int64, error) {
	s.space()
	begin, v := s.at, int64(0)
	for ; s.at < len(s.data) && s.data[s.at] >= '0' && s.data[s.at] <= '9'; s.at++ {
		d := int64(s.data[s.at] - '0')
		if v > (math.MaxInt64-d)/10 {
			return 0, s.errorf("number does not fit 63 bits")
		}
		v = v*10 + d
	}
	switch n := s.at - begin; {
	case n == 0:
		return 0, s.errorf("not a whole number, 0 or greater")
	case n > 1 && s.data[begin] == '0':
		return 0, s.errorf("number with a leading zero")
	}
	return v, nil
}

// end checks that only white space follows.
func (s *scanner) end() error {
	if s.next(); s.at != len(s.data) {
		return s.errorf("text after the header object")
	}
	return nil
}
