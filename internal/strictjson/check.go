package strictjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Limits bound the cost of decoding a document. A limit of 0 is not checked.
type Limits struct {
	Depth   int // of nested objects and arrays
	Members int // of the outermost object or array
	Names   int // of all objects that are open at the same time; 0: names are not compared
}

// Fault is an error in a document. At is the place, such as messages[0].content, or empty for the
// whole document.
type Fault struct {
	At, Message string
}

func (f *Fault) Error() string { return f.Message }

// Check compares a document with limits and refuses objects with two members of the same name. It
// allocates only for the names of open objects. It accepts some malformed documents, which the
// decoder refuses.
func Check(doc []byte, l Limits) *Fault {
	c := checker{doc: doc, limits: l}
	for i := 0; i < len(doc); i++ {
		switch doc[i] {
		case '"':
			end := stringEnd(doc, i)
			if end < 0 {
				return nil
			}
			if f := c.text(doc[i:end]); f != nil {
				return f
			}
			i = end - 1
		case '{', '[':
			if f := c.open(doc[i] == '{'); f != nil {
				return f
			}
		case '}', ']':
			c.close()
		case ',':
			if f := c.comma(); f != nil {
				return f
			}
		case ':':
			c.name = false
		}
	}
	return nil
}

// stringEnd returns the index after the string that starts at i, or -1.
func stringEnd(doc []byte, i int) int {
	for i++; i < len(doc); i++ {
		switch doc[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

type checker struct {
	doc    []byte
	limits Limits
	levels []level
	names  int  // of all levels
	name   bool // the next string is a member's name
}

// level is an open object or array.
type level struct {
	object bool
	index  int                 // of the element or member
	member string              // the newest member's name
	few    []string            // names, up to fewNames
	many   map[string]struct{} // names, above fewNames
}

const fewNames = 16

func (c *checker) open(object bool) *Fault {
	if c.limits.Depth > 0 && len(c.levels) >= c.limits.Depth {
		return &Fault{Message: fmt.Sprintf("The JSON body is nested deeper than %d levels.", c.limits.Depth)}
	}
	c.levels = append(c.levels, level{object: object})
	c.name = object
	return nil
}

func (c *checker) close() {
	n := len(c.levels)
	if n == 0 {
		return
	}
	c.names -= c.levels[n-1].size()
	c.levels = c.levels[:n-1]
	c.name = false
}

func (l *level) size() int { return len(l.few) + len(l.many) }

func (c *checker) comma() *Fault {
	n := len(c.levels)
	if n == 0 {
		return nil
	}
	l := &c.levels[n-1]
	l.index++
	c.name = l.object
	if n == 1 && c.limits.Members > 0 && l.index >= c.limits.Members {
		return &Fault{Message: fmt.Sprintf("The JSON body has more than %d members.", c.limits.Members)}
	}
	return nil
}

// text handles a string: a member's name or a value.
func (c *checker) text(quoted []byte) *Fault {
	n := len(c.levels)
	if !c.name || n == 0 || c.limits.Names == 0 {
		return nil
	}
	c.name = false
	l := &c.levels[n-1]
	name, ok := unquote(quoted)
	if !ok {
		return nil // the decoder reports the error
	}
	before := place(c.levels[:n-1])
	l.member = name
	if !l.add(name) {
		at := place(c.levels)
		where := "The JSON body"
		if before != "" {
			where = "'" + before + "'"
		}
		return &Fault{At: at, Message: fmt.Sprintf("%s has the member %.80q twice; send it once.", where, name)}
	}
	if c.names++; c.names > c.limits.Names {
		return &Fault{At: before, Message: fmt.Sprintf("The JSON body has more than %d members in nested objects.", c.limits.Names)}
	}
	return nil
}

// add returns false if the object already has the name.
func (l *level) add(name string) bool {
	if l.many != nil {
		before := len(l.many)
		l.many[name] = struct{}{}
		return len(l.many) > before
	}
	for _, x := range l.few {
		if x == name {
			return false
		}
	}
	if l.few = append(l.few, name); len(l.few) > fewNames {
		l.many = make(map[string]struct{}, 4*fewNames)
		for _, x := range l.few {
			l.many[x] = struct{}{}
		}
		l.few = nil
	}
	return true
}

// unquote decodes a JSON string. It returns false if it is malformed.
func unquote(quoted []byte) (string, bool) {
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
		return string(inner), true
	}
	var s string
	return s, json.Unmarshal(quoted, &s) == nil
}

// place returns the path of the open levels, at most placeBytes long.
func place(levels []level) string {
	var b []byte
	for i := range levels {
		switch l := &levels[i]; {
		case !l.object:
			b = append(b, '[')
			b = append(strconv.AppendInt(b, int64(l.index), 10), ']')
		default:
			if len(b) > 0 {
				b = append(b, '.')
			}
			b = append(b, l.member[:min(len(l.member), 64)]...)
		}
		if len(b) > placeBytes {
			return string(bytes.ToValidUTF8(b[:placeBytes], nil)) + "..."
		}
	}
	return string(bytes.ToValidUTF8(b, nil))
}

const placeBytes = 256
