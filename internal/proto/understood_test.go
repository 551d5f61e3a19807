package proto

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/shoal-llm/shoal/internal/wire"
	"github.com/shoal-llm/shoal/internal/wire/wiretest"
)

// newer is a field that no build has.
var newer = protowire.AppendVarint(protowire.AppendTag(nil, 9999, protowire.VarintType), 1)

// nesting fills a message with one message in every field that holds some, and calls plant for
// each, with its path.
func nesting(m protoreflect.Message, path string, plant func(m protoreflect.Message, path string)) {
	plant(m, path)
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		switch {
		case f.Message() == nil:
		case f.IsList():
			l := m.Mutable(f).List()
			l.AppendMutable()
			nesting(l.AppendMutable().Message(), fmt.Sprintf("%s.%s[1]", path, f.Name()), plant)
		default:
			nesting(m.Mutable(f).Message(), fmt.Sprintf("%s.%s", path, f.Name()), plant)
		}
	}
}

// TestUnknown: an unknown field is found in every message, at any depth, but in reports.
func TestUnknown(t *testing.T) {
	found := 0
	messages := File_internal_proto_shoal_proto.Messages()
	for i := range messages.Len() {
		kind, err := pbType(messages.Get(i))
		if err != nil {
			t.Fatal(err)
		}
		var paths []string
		inReport := map[string]bool{}
		nesting(kind.New(), string(messages.Get(i).Name()), func(m protoreflect.Message, path string) {
			paths = append(paths, path)
			for i, c := range path { // a report, or a part of one
				inReport[path] = inReport[path] || (c == '.' || c == '[') && inReport[path[:i]]
			}
			inReport[path] = inReport[path] || reports[m.Descriptor().FullName()]
		})
		for _, want := range paths {
			m := kind.New()
			nesting(m, string(messages.Get(i).Name()), func(m protoreflect.Message, path string) {
				if path == want {
					m.SetUnknown(newer)
				}
			})
			got := Unknown(m.Interface())
			if inReport[want] {
				if got != nil {
					t.Errorf("%s: a report is refused: %v", want, got)
				}
				continue
			}
			found++
			if got == nil || got.Error() != want+" has the field 9999, which is unknown to this build" {
				t.Errorf("%s: %v", want, got)
			}
		}
		clean := kind.New()
		nesting(clean, "", func(protoreflect.Message, string) {})
		if err := Unknown(clean.Interface()); err != nil {
			t.Errorf("%s without unknown fields: %v", messages.Get(i).Name(), err)
		}
	}
	if found < 40 {
		t.Errorf("%d places were tried", found)
	}
	wired, err := pb.Marshal(&StepRequest{Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	var step StepRequest
	if err := pb.Unmarshal(append(wired, newer...), &step); err != nil || Unknown(&step) == nil {
		t.Errorf("over the wire: %v %v", err, Unknown(&step))
	}
}

func pbType(d protoreflect.MessageDescriptor) (protoreflect.MessageType, error) {
	for i := range file_internal_proto_shoal_proto_msgTypes {
		if m := &file_internal_proto_shoal_proto_msgTypes[i]; m.Descriptor() == d {
			return m, nil
		}
	}
	return nil, fmt.Errorf("no type of %s", d.FullName())
}

// TestSince: every field that instructions have gained since the oldest readable version is in
// the table, with the version whose record is the first to have it.
func TestSince(t *testing.T) {
	first := map[string]uint32{} // of a field, by its line in a record
	for v := wire.MinVersion; v <= wire.Version; v++ {
		record, err := os.ReadFile(wiretest.Path(v))
		if err != nil {
			t.Fatalf("the record of a readable version: %v", err)
		}
		for name, text := range wiretest.Parse(string(record)) {
			for line := range strings.SplitSeq(text, "\n") {
				if key := name + " " + line; first[key] == 0 {
					first[key] = uint32(v)
				}
			}
		}
	}
	for _, request := range []pb.Message{&LoadRequest{}, &JoinRequest{}, &StepRequest{}, &RetireRequest{},
		&ReleaseRequest{}, &PrefixRequest{}, &StoreMembers{}, &WeightsRequest{}, &DrainRequest{}} {
		nesting(request.ProtoReflect(), "", func(m protoreflect.Message, _ string) {
			for i := range m.Descriptor().Fields().Len() {
				f := m.Descriptor().Fields().Get(i)
				want := first["message "+string(m.Descriptor().FullName())+" "+fieldLine(f)]
				if have := since[f.FullName()]; want == wire.MinVersion && have <= wire.MinVersion {
					continue // every process that is let in has it
				}
				if since[f.FullName()] != want {
					t.Errorf("%s is of wire version %d, but %d in the table", f.FullName(), want, since[f.FullName()])
				}
			}
		})
	}
}

// TestNeeds: a message is of the version of its newest field that is set.
func TestNeeds(t *testing.T) {
	for _, c := range []struct {
		m    pb.Message
		want uint32
	}{
		{&StepRequest{Epoch: 1, Chunks: []*Chunk{{Seq: 1}}}, 0},
		{&StepRequest{Passes: 2}, 6},
		{&StepRequest{ThreadShift: 1}, 6},
		{&StepRequest{MicroBatches: 2}, 8},
		{&Empty{}, 0},
	} {
		if got, field := Needs(c.m); got != c.want || (got != 0) != (field != "") {
			t.Errorf("%v: version %d for %q, want %d", c.m, got, field, c.want)
		}
	}
}

// BenchmarkUnknown is a look at the plan of 64 decode rows.
func BenchmarkUnknown(b *testing.B) {
	r := new(StepRequest)
	for i := range uint64(64) {
		r.Chunks = append(r.Chunks, &Chunk{Seq: i, Tokens: []uint32{1}})
	}
	for b.Loop() {
		if Unknown(r) != nil {
			b.Fatal("unknown fields")
		}
	}
}
