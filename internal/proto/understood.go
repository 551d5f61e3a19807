package proto

import (
	"fmt"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// reports are the messages whose unknown fields may be ignored. They describe a process or the cost of
// a step, and no code depends on a missing part. All other messages carry instructions or results, so a
// receiver that ignored a field would do something else than the sender meant.
var reports = map[protoreflect.FullName]bool{
	"shoal.Envelope": true, "shoal.Hello": true, // frozen, and read before versions are compared
	"shoal.NodeDescription": true, "shoal.SocketStatus": true, "shoal.PrefixDisk": true, "shoal.Scratch": true,
	"shoal.ThreadTime": true, "shoal.ReleaseReply": true,
}

// since lists the fields that came after the oldest wire version that this build reads, with
// the version that has them. Older entries may stay. A message that sets one is not sent to an older process.
var since = map[protoreflect.FullName]uint32{
	"shoal.StepRequest.passes":       6,
	"shoal.StepRequest.thread_shift": 6,
	"shoal.Grammar.open":             6,
	"shoal.Grammar.thought":          6,

	"shoal.StepRequest.micro_batches": 8,
}

// Unknown returns an error that names the first unknown field of m, or of a message in m; nil: there is
// none, or m is a report.
func Unknown(m pb.Message) error {
	path, number := unknown(m.ProtoReflect())
	if number == 0 {
		return nil
	}
	return fmt.Errorf("%s%s has the field %d, which is unknown to this build", m.ProtoReflect().Descriptor().Name(), path, number)
}

// unknown returns the path to the message with the field, and the field's number, or 0 if there is none.
func unknown(m protoreflect.Message) (path string, number protowire.Number) {
	d := shapeOf(m.Descriptor())
	if d.report {
		return "", 0
	}
	if raw := m.GetUnknown(); len(raw) > 0 {
		number, _, _ = protowire.ConsumeTag(raw)
		return "", number
	}
	d.each(m, func(of protoreflect.Message, f protoreflect.FieldDescriptor, i int) bool {
		if path, number = unknown(of); number == 0 {
			return true
		}
		if i >= 0 {
			path = fmt.Sprintf("[%d]%s", i, path)
		}
		path = fmt.Sprintf(".%s%s", f.Name(), path)
		return false
	})
	return path, number
}

// Needs returns the wire version that a receiver of m must read, and the field that needs it; 0: any
// version will do.
func Needs(m pb.Message) (version uint32, field protoreflect.FullName) {
	return needs(m.ProtoReflect())
}

func needs(m protoreflect.Message) (version uint32, field protoreflect.FullName) {
	d := shapeOf(m.Descriptor())
	for _, f := range d.newer {
		if v := since[f.FullName()]; v > version && m.Has(f) {
			version, field = v, f.FullName()
		}
	}
	d.each(m, func(of protoreflect.Message, _ protoreflect.FieldDescriptor, _ int) bool {
		if v, f := needs(of); v > version {
			version, field = v, f
		}
		return true
	})
	return version, field
}

// shape is the properties of a message type that a walk needs.
type shape struct {
	report bool
	nested []protoreflect.FieldDescriptor // those that hold messages
	newer  []protoreflect.FieldDescriptor // those in since
}

var shapes sync.Map // protoreflect.FullName -> *shape

func shapeOf(d protoreflect.MessageDescriptor) *shape {
	if s, ok := shapes.Load(d.FullName()); ok {
		return s.(*shape)
	}
	s := &shape{report: reports[d.FullName()]}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if f.Message() != nil {
			s.nested = append(s.nested, f)
		}
		if since[f.FullName()] != 0 {
			s.newer = append(s.newer, f)
		}
	}
	shapes.Store(d.FullName(), s)
	return s
}

// each calls visit for every message in m, with its place in a list or -1, while it returns true.
func (s *shape) each(m protoreflect.Message, visit func(of protoreflect.Message, f protoreflect.FieldDescriptor, i int) bool) {
	for _, f := range s.nested {
		switch {
		case !m.Has(f):
		case f.IsList():
			for l, i := m.Get(f).List(), 0; i < l.Len(); i++ {
				if !visit(l.Get(i).Message(), f, i) {
					return
				}
			}
		default:
			if !visit(m.Get(f).Message(), f, -1) {
				return
			}
		}
	}
}
