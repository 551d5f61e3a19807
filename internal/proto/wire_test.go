package proto

import (
	"fmt"
	"sort"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/shoal-llm/shoal/internal/wire/wiretest"
)

// TestWire: a change of a message is a new wire version.
func TestWire(t *testing.T) {
	wiretest.Check(t, descriptors()...)
}

// descriptors are the messages and enums of all files, by name. Comments, the order in a file
// and JSON names are not part of the format.
func descriptors() (forms []wiretest.Form) {
	for _, file := range []protoreflect.FileDescriptor{File_internal_proto_envelope_proto, File_internal_proto_shoal_proto} {
		enums, messages := file.Enums(), file.Messages()
		for i := range enums.Len() {
			forms = append(forms, enumForm(enums.Get(i)))
		}
		for i := range messages.Len() {
			forms = append(forms, messageForm(messages.Get(i)))
		}
	}
	sort.Slice(forms, func(i, j int) bool { return forms[i].Name < forms[j].Name })
	return forms
}

func enumForm(e protoreflect.EnumDescriptor) wiretest.Form {
	var lines []string
	for i := range e.Values().Len() {
		v := e.Values().Get(i)
		lines = append(lines, fmt.Sprintf("%d %s", v.Number(), v.Name()))
	}
	sort.Strings(lines)
	return wiretest.Form{Name: "enum " + string(e.FullName()), Text: strings.Join(lines, "\n")}
}

func messageForm(m protoreflect.MessageDescriptor) wiretest.Form {
	if m.Messages().Len()+m.Enums().Len() > 0 {
		panic(fmt.Sprintf("%s has nested types: record them, too", m.FullName()))
	}
	var lines []string
	for i := range m.Fields().Len() {
		lines = append(lines, fieldLine(m.Fields().Get(i)))
	}
	for i := range m.ReservedRanges().Len() {
		r := m.ReservedRanges().Get(i)
		lines = append(lines, fmt.Sprintf("reserved %d to %d", r[0], r[1]-1))
	}
	sort.Strings(lines)
	return wiretest.Form{Name: "message " + string(m.FullName()), Text: strings.Join(lines, "\n")}
}

func fieldLine(f protoreflect.FieldDescriptor) string {
	kind := f.Kind().String()
	switch {
	case f.Message() != nil:
		kind = string(f.Message().FullName())
	case f.Enum() != nil:
		kind = string(f.Enum().FullName())
	}
	line := fmt.Sprintf("%d %s %s %s", f.Number(), f.Name(), f.Cardinality(), kind)
	if f.IsList() && !f.IsPacked() && f.Message() == nil && f.Kind() != protoreflect.StringKind && f.Kind() != protoreflect.BytesKind {
		line += " unpacked"
	}
	if o := f.ContainingOneof(); o != nil {
		line += " of " + string(o.Name())
	}
	return line
}
