package sentencepiece

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// Charsmap is a precompiled table of replacements: a double array (Darts-clone) over the texts, whose
// values are offsets of NUL-terminated replacements.
type Charsmap struct {
	units []uint32
	text  string
}

// ParseCharsmap reads the form of NormalizerSpec.precompiled_charsmap: the size of the double array
// in bytes, the array, the replacements. An empty one replaces nothing.
func ParseCharsmap(data []byte) (*Charsmap, error) {
	if len(data) == 0 {
		return &Charsmap{}, nil
	}
	if len(data) < 4 {
		return nil, errors.New("the table of replacements is cut off in its size")
	}
	size := binary.LittleEndian.Uint32(data)
	data = data[4:]
	if size%4 != 0 || uint64(size) > uint64(len(data)) || size == 0 {
		return nil, errors.New("the table of replacements has an array of a wrong size")
	}
	c := &Charsmap{units: make([]uint32, size/4), text: string(data[size:])}
	for i := range c.units {
		c.units[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	if !utf8.ValidString(c.text) {
		return nil, errors.New("the table of replacements is not valid UTF-8")
	}
	for with := range strings.SplitSeq(c.text, "\x00") {
		if len(with) > maxReplacement {
			return nil, fmt.Errorf("the table of replacements has one of %d bytes, the limit is %d", len(with), maxReplacement)
		}
	}
	return c, nil
}

// maxReplacement bounds how much a text can grow. The longest one of NFKC has 33 bytes.
const maxReplacement = 128

// maxResults is the number of prefixes that sentencepiece looks at.
const maxResults = 32

// lookup returns the replacement of a prefix of s and the length of the prefix, 0: none.
func (c *Charsmap) lookup(s string, longest bool) (with string, n int) {
	if len(c.units) == 0 {
		return "", 0
	}
	value, results := -1, 0
	pos := c.offset(c.units[0])
	for i := range len(s) {
		b := uint32(s[i])
		if b == 0 && !longest {
			break
		}
		pos ^= b
		if uint64(pos) >= uint64(len(c.units)) {
			break
		}
		u := c.units[pos]
		if u&(1<<31|0xFF) != b {
			break
		}
		pos ^= c.offset(u)
		if u>>8&1 == 0 {
			continue
		}
		if uint64(pos) >= uint64(len(c.units)) {
			break
		}
		value, n = int(c.units[pos]&(1<<31-1)), i+1
		if results++; !longest || results == maxResults {
			break
		}
	}
	if value < 0 || value > len(c.text) || value < len(c.text) && !utf8.RuneStart(c.text[value]) {
		return "", 0
	}
	with, _, _ = strings.Cut(c.text[value:], "\x00")
	return with, n
}

func (c *Charsmap) offset(u uint32) uint32 { return u >> 10 << (u & (1 << 9) >> 6) }

// Precompiled returns the normalizer of that name of the tokenizers library. It looks up each grapheme
// cluster of less than 6 bytes, and else each character, by the shortest prefix in the table. So a
// mark after a replaced character may be lost, which models are trained with.
func (c *Charsmap) Precompiled(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	state := -1
	for s != "" {
		if s[0] < utf8.RuneSelf && (len(s) == 1 || s[1] < utf8.RuneSelf && s[1] != '\n') {
			c.replace(&b, s[:1]) // a cluster of its own
			s, state = s[1:], -1
			continue
		}
		var cluster string
		cluster, s, _, state = uniseg.FirstGraphemeClusterInString(s, state)
		if len(cluster) < 6 {
			if with, n := c.lookup(cluster, false); n > 0 {
				b.WriteString(with)
				continue
			}
		}
		for i, r := range cluster {
			c.replace(&b, cluster[i:i+utf8.RuneLen(r)])
		}
	}
	return b.String()
}

func (c *Charsmap) replace(b *strings.Builder, s string) {
	if with, n := c.lookup(s, false); n > 0 {
		s = with
	}
	b.WriteString(s)
}
