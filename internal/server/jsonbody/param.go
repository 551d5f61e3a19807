package jsonbody

import (
	"slices"
	"strconv"
)

// Kind is how a parameter is decoded.
type Kind int

// Kinds of parameters.
const (
	KindAny     Kind = iota // any JSON
	KindBool                // true or false
	KindInteger             // a whole number of Min to Max
	KindNumber              // a number of Low to High
	KindText                // a string of at most MaxLen bytes
	KindList                // a list of at most MaxLen Items
	KindObject              // an object, of Members if there are any
	KindMap                 // an object of at most MaxLen names, each with Items
	KindEither              // one of Any
)

// Param describes one member of a request. Decoders, the OpenAPI document and
// the reference page all take its bounds from here.
type Param struct {
	Name      string
	Kind      Kind
	Min, Max  int64   // of an integer
	Format    string  // of an integer whose bounds are those of the format: int32, int64
	Low, High float64 // of a number
	Above     bool    // a number must be more than Low
	MinLen    int     // elements of a list, at least
	MaxLen    int     // bytes, elements or names, at most; 0: as many as the body holds
	Words     []string
	Pattern   string // a text that is not in Words must match it
	Items     *Param
	Members   *Table
	Any       []Param
	About     string
	Hidden    bool // decoded, and not shown
}

func Bool(name string) Param           { return Param{Name: name, Kind: KindBool} }
func ObjectOf(name string) Param       { return Param{Name: name, Kind: KindObject} }
func Any(name string) Param            { return Param{Name: name} }
func Text(name string, most int) Param { return Param{Name: name, Kind: KindText, MaxLen: most} }
func Integer(name string, lo, hi int64) Param {
	return Param{Name: name, Kind: KindInteger, Min: lo, Max: hi}
}
func Number(name string, lo, hi float64) Param {
	return Param{Name: name, Kind: KindNumber, Low: lo, High: hi}
}
func List(name string, most int, items Param) Param {
	return Param{Name: name, Kind: KindList, MaxLen: most, Items: &items}
}
func Either(name string, any ...Param) Param {
	return Param{Name: name, Kind: KindEither, Any: any}
}
func Words(name string, words ...string) Param {
	return Param{Name: name, Kind: KindText, MaxLen: 64, Words: words}
}

// As returns the parameter, or its first alternative, of a kind.
func (p *Param) As(kind Kind) *Param {
	if p.Kind == kind {
		return p
	}
	for i := range p.Any {
		if p.Any[i].Kind == kind {
			return &p.Any[i]
		}
	}
	panic("jsonbody: the parameter " + strconv.Quote(p.Name) + " is read as a kind that its table does not have")
}

// Renamed returns the parameter under another name.
func (p Param) Renamed(name string) Param {
	p.Name = name
	return p
}

// Table holds the parameters of one request, in the order in which they were added.
type Table struct {
	list   []Param
	byName map[string]int
}

// NewTable makes a table. Of two parameters of a name the last one counts.
func NewTable(list ...Param) *Table {
	t := &Table{byName: map[string]int{}}
	for _, p := range list {
		if at, ok := t.byName[p.Name]; ok {
			t.list[at] = p
			continue
		}
		t.byName[p.Name] = len(t.list)
		t.list = append(t.list, p)
	}
	return t
}

// With returns the table with more parameters, which replace those of the same name.
func (t *Table) With(more ...Param) *Table { return NewTable(slices.Concat(t.list, more)...) }

// Pick returns a table of some of the parameters.
func (t *Table) Pick(names ...string) *Table {
	out := make([]Param, len(names))
	for i, name := range names {
		out[i] = *t.Of(name)
	}
	return NewTable(out...)
}

// Without returns the table without some parameters.
func (t *Table) Without(names ...string) *Table {
	return NewTable(slices.DeleteFunc(slices.Clone(t.list), func(p Param) bool { return slices.Contains(names, p.Name) })...)
}

// Renamed returns the parameters that another protocol has, under its names.
func (t *Table) Renamed(words map[string]string) *Table {
	var out []Param
	for _, p := range t.list {
		for from, to := range words {
			if to == p.Name {
				out = append(out, p.Renamed(from))
			}
		}
	}
	return NewTable(out...)
}

// Has reports whether the table has a parameter.
func (t *Table) Has(name string) bool {
	_, ok := t.byName[name]
	return ok
}

// Of returns a parameter. It panics if there is none: decoders read no other.
func (t *Table) Of(name string) *Param {
	at, ok := t.byName[name]
	if !ok {
		panic("jsonbody: no table of parameters has " + strconv.Quote(name))
	}
	return &t.list[at]
}
