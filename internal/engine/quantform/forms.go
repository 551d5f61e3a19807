package quantform

import (
	"slices"
	"strings"
)

// Form is one published form.
type Form struct {
	Name    string   // as Verify and errors show it
	Methods []string // quant_method of the settings that may use it
	Codes   string   // suffix of the module's name in the name of the tensor of codes
	Types   []string // the types of that tensor
	Parts   []string // suffixes in the names of the module's other tensors
	Needs   string   // the one of them without which the codes are not this form; "": none

	Becomes string // the type in memory, for the documentation

	build func(s *Settings, m *module) (*Matrix, error)
}

// forms is the table. Of two forms that match, the first is taken.
var forms = []*Form{fp8Form, nvfp4Form, mxfp4Form, nvfp4ModelOptForm, packedForm, int8Form, gptqForm, awqForm, nf4Form,
	int8BnBForm, torchaoFP8Form, torchaoIntForm}

// unused lists the last parts of names of tensors that no product of weights reads: static scales of
// activations, of caches, and statistics of training.
var unused = []string{"input_scale", "input_zero_point", "input_global_scale", "activation_scale", "k_scale", "v_scale", "q_scale",
	"output_scale", "input_scale_ub", "weight_format"}

// Unused reports whether a tensor of a quantized checkpoint is not needed for its weights.
func Unused(name string) bool {
	return slices.Contains(unused, name[strings.LastIndexByte(name, '.')+1:])
}

// module is one matrix. Its tensors have the rest of their name, after that of the module, as key.
type module struct {
	name  string
	codes *Part
	parts map[string]*Part
	form  *Form
}

// part returns a part, or an empty one.
func (m *module) part(suffix string) (*Part, bool) {
	p, ok := m.parts[suffix]
	if !ok {
		p = &Part{}
	}
	return p, ok
}

// Match returns the form of a tensor and the name of its module, or nil if the tensor does not hold
// the codes of a matrix. find returns tensors by name.
func (s *Settings) Match(p Part, find func(name string) (Part, bool)) (*Form, string) {
	for _, f := range forms {
		base, ok := strings.CutSuffix(p.Name, f.Codes)
		if !ok || !p.typed(f.Types...) || !slices.Contains(f.Methods, s.Method) {
			continue
		}
		if f.Needs != "" {
			if _, there := find(base + f.Needs); !there {
				continue
			}
		}
		return f, base
	}
	return nil, ""
}

// Assemble makes the matrix of a module from its tensors. The shapes of all parts are checked.
func (s *Settings) Assemble(f *Form, base string, codes Part, find func(name string) (Part, bool)) (*Matrix, error) {
	m := &module{name: base, codes: &codes, parts: map[string]*Part{}, form: f}
	for _, suffix := range f.Parts {
		if p, ok := find(base + suffix); ok {
			m.parts[suffix] = &p
		}
	}
	if len(codes.Shape) != 2 || codes.Shape[0] < 1 || codes.Shape[1] < 1 {
		return nil, &Error{Tensor: codes.Name, Kind: ErrMismatch, Detail: "is " + codes.String() + "; only matrices are stored so"}
	}
	out, err := f.build(s, m)
	if err != nil {
		return nil, err
	}
	out.Form = f
	return out, nil
}

// bad returns an error about a part; with found false, about its absence.
func (m *module) bad(suffix string, p *Part, found bool, want string) error {
	if !found {
		return &Error{Tensor: m.codes.Name, Kind: ErrMissing, Detail: "is " + m.codes.Stored + " without the " + strings.TrimPrefix(suffix, ".") +
			" that belongs to it; want " + want}
	}
	return &Error{Tensor: m.name + suffix, Kind: ErrMismatch, Detail: "is " + p.String() + "; " + m.codes.Name + " of shape " +
		shape(m.codes.Shape) + " requires " + want}
}
