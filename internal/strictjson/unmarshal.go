package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

var (
	rawType    = reflect.TypeFor[json.RawMessage]()
	readerType = reflect.TypeFor[json.Unmarshaler]()
)

// Unmarshal decodes a document into v, a pointer, like encoding/json, but with exact names and
// integers in any spelling. After a fault it still decodes the rest of the document. Of members
// with the same name the last one counts: see Check.
func Unmarshal(doc []byte, v any) error {
	if !json.Valid(doc) {
		return syntax(doc)
	}
	d := decoder{}
	d.value("", doc, reflect.ValueOf(v).Elem())
	if d.fault != nil {
		return d.fault
	}
	return nil
}

// syntax reports where a document stops being JSON.
func syntax(doc []byte) *Fault {
	var raw json.RawMessage
	err := json.Unmarshal(doc, &raw)
	var at *json.SyntaxError
	if errors.As(err, &at) {
		return &Fault{Message: fmt.Sprintf("It is not valid JSON (byte %d: %v).", at.Offset, at)}
	}
	return &Fault{Message: "It is not valid JSON."}
}

type decoder struct {
	fault *Fault // the first one
}

func (d *decoder) fail(at, want string) {
	if d.fault != nil {
		return
	}
	if at == "" {
		d.fault = &Fault{Message: "It must be " + want + "."}
		return
	}
	d.fault = &Fault{At: at, Message: fmt.Sprintf("'%s' must be %s.", at, want)}
}

// value decodes valid JSON without white space around it into v.
func (d *decoder) value(at string, doc []byte, v reflect.Value) {
	doc = bytes.TrimSpace(doc)
	switch {
	case v.Type() == rawType:
		v.SetBytes(doc)
		return
	case v.Kind() != reflect.Pointer && v.CanAddr() && v.Addr().Type().Implements(readerType):
		if v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(doc) != nil {
			d.fail(at, "of another form")
		}
		return
	case string(doc) == "null":
		switch v.Kind() {
		case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
			v.SetZero()
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		d.value(at, doc, v.Elem())
	case reflect.Struct:
		d.object(at, doc, v)
	case reflect.Map:
		d.mapping(at, doc, v)
	case reflect.Slice:
		d.list(at, doc, v)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		x, ok := Int(doc)
		if !ok || v.OverflowInt(x) {
			d.fail(at, "an integer"+bits(v.Type()))
			return
		}
		v.SetInt(x)
	case reflect.Float32, reflect.Float64:
		x, err := strconv.ParseFloat(string(doc), v.Type().Bits())
		if err != nil || doc[0] != '-' && (doc[0] < '0' || doc[0] > '9') {
			d.fail(at, "a number")
			return
		}
		v.SetFloat(x)
	case reflect.String:
		d.plain(at, "a string", doc, v)
	case reflect.Bool:
		d.plain(at, "true or false", doc, v)
	default:
		d.plain(at, "of another form", doc, v)
	}
}

// bits names the size of an integer that is smaller than 64 bits.
func bits(t reflect.Type) string {
	if t.Bits() == 64 {
		return ""
	}
	return fmt.Sprintf(" of %d bits", t.Bits())
}

func (d *decoder) plain(at, want string, doc []byte, v reflect.Value) {
	if json.Unmarshal(doc, v.Addr().Interface()) != nil {
		d.fail(at, want)
	}
}

// members returns the members of an object, and false if the document is not an object.
func (d *decoder) members(at string, doc []byte) (m map[string]json.RawMessage, ok bool) {
	if json.Unmarshal(doc, &m) != nil {
		d.fail(at, "an object")
		return nil, false
	}
	return m, true
}

func (d *decoder) object(at string, doc []byte, v reflect.Value) {
	if m, ok := d.members(at, doc); ok {
		d.fields(at, m, v)
	}
}

func (d *decoder) fields(at string, m map[string]json.RawMessage, v reflect.Value) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct:
			d.fields(at, m, v.Field(i))
			continue
		case !f.IsExported() || name == "-":
			continue
		case name == "":
			name = f.Name
		}
		if doc, ok := m[name]; ok {
			d.value(join(at, name), doc, v.Field(i))
		}
	}
}

func (d *decoder) mapping(at string, doc []byte, v reflect.Value) {
	m, ok := d.members(at, doc)
	if !ok {
		return
	}
	t := v.Type()
	if v.IsNil() {
		v.Set(reflect.MakeMapWithSize(t, len(m)))
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		x := reflect.New(t.Elem()).Elem()
		d.value(join(at, name), m[name], x)
		v.SetMapIndex(reflect.ValueOf(name).Convert(t.Key()), x)
	}
}

func (d *decoder) list(at string, doc []byte, v reflect.Value) {
	var raws []json.RawMessage
	if json.Unmarshal(doc, &raws) != nil {
		d.fail(at, "a list")
		return
	}
	out := reflect.MakeSlice(v.Type(), len(raws), len(raws))
	for i, raw := range raws {
		d.value(at+"["+strconv.Itoa(i)+"]", raw, out.Index(i))
	}
	v.Set(out)
}

func join(at, name string) string {
	if len(name) > 64 {
		name = strings.ToValidUTF8(name[:64], "") + "..."
	}
	if at == "" {
		return name
	}
	return at + "." + name
}
