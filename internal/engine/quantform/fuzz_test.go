package quantform

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const fuzzed = "model.layers.1.mlp.down_proj"

// stored is a tensor of a module in a safetensors header.
type stored struct {
	Type   string `json:"dtype"`
	Shape  []int  `json:"shape"`
	Offset [2]int `json:"data_offsets"`
}

// FuzzForms: for any settings, tensors and bytes of one module, the result is an error or a matrix whose
// elements, codes and byte ranges can all be read. The seeds are a module of each form.
func FuzzForms(f *testing.F) {
	dirs, err := filepath.Glob("../model/testdata/quantized/*")
	if err != nil || len(dirs) == 0 {
		f.Fatal(dirs, err)
	}
	for _, dir := range dirs {
		var config struct {
			Settings json.RawMessage `json:"quantization_config"`
		}
		text, err := os.ReadFile(filepath.Join(dir, "config.json"))
		if err == nil {
			err = json.Unmarshal(text, &config)
		}
		if err != nil {
			f.Fatal(err)
		}
		file, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
		if err != nil {
			f.Fatal(err)
		}
		n := 8 + int(binary.LittleEndian.Uint64(file))
		var all map[string]json.RawMessage
		if err := json.Unmarshal(file[8:n], &all); err != nil {
			f.Fatal(err)
		}
		mine, data := map[string]stored{}, []byte{}
		for name, entry := range all {
			if suffix, ok := strings.CutPrefix(name, fuzzed); ok {
				var s stored
				if err := json.Unmarshal(entry, &s); err != nil {
					f.Fatal(err)
				}
				part := file[n+s.Offset[0] : n+s.Offset[1]]
				s.Offset = [2]int{len(data), len(data) + len(part)}
				mine[suffix], data = s, append(data, part...)
			}
		}
		header, err := json.Marshal(mine)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(config.Settings), header, data)
	}
	f.Fuzz(func(t *testing.T, settings, header, data []byte) {
		s, err := Read(settings)
		if err != nil {
			knownError(t, err)
			return
		}
		var parts map[string]stored
		if json.Unmarshal(header, &parts) != nil {
			return
		}
		find := func(name string) (Part, bool) {
			e, ok := parts[strings.TrimPrefix(name, fuzzed)]
			if !ok || !strings.HasPrefix(name, fuzzed) {
				return Part{}, false
			}
			p := Part{Name: name, Stored: e.Type, Shape: e.Shape}
			size := width(e.Type) // the reader of safetensors has checked that the bytes are those of the shape
			for _, d := range e.Shape {
				if d < 0 || d > 1<<12 || size > 1<<20 {
					return Part{}, false
				}
				size *= d
			}
			if e.Offset[0] < 0 || e.Offset[0] > len(data) || size > len(data)-e.Offset[0] {
				return Part{}, false
			}
			p.Data = data[e.Offset[0]:][:size:size]
			return p, true
		}
		for suffix := range parts {
			codes, ok := find(fuzzed + suffix)
			if !ok {
				continue
			}
			form, base := s.Match(codes, find)
			if form == nil {
				continue
			}
			m, err := s.Assemble(form, base, codes, find)
			if err != nil {
				knownError(t, err)
				continue
			}
			readWhole(t, m)
		}
	})
}

func knownError(t *testing.T, err error) {
	t.Helper()
	if _, ok := errors.AsType[*Error](err); !ok || len(err.Error()) > 4000 {
		t.Errorf("not an error of this package: %v", err)
	}
}

// readWhole reads a matrix in all ways and compares them.
func readWhole(t *testing.T, m *Matrix) {
	t.Helper()
	if m.Rows < 1 || m.Cols < 1 || m.Rows > 1<<20 || m.Cols > 1<<20 {
		t.Fatalf("a matrix of %d x %d", m.Rows, m.Cols)
	}
	row := make([]float32, m.Cols)
	for r := 0; r < m.Rows; r += 1 + m.Rows/8 {
		m.Row(row, r, 0)
		for lo := 0; lo < m.Cols && m.Codes != nil; lo += Block {
			var q [Block]int16
			zero, scale, ok := m.Codes(&q, r, lo)
			for i := 0; ok && i < min(Block, m.Cols-lo); i++ {
				if v := float32(q[i]-zero) * scale; v != row[lo+i] && !(math.IsNaN(float64(v)) && math.IsNaN(float64(row[lo+i]))) {
					t.Fatalf("row %d column %d is %g, with codes %g", r, lo+i, row[lo+i], v)
				}
			}
		}
		for i := range m.Parts {
			for _, b := range m.Bytes(i, r, r+1, m.Cols/3, m.Cols) {
				if b[0] < 0 || b[0] > b[1] || b[1] > len(m.Parts[i].Data) {
					t.Fatalf("bytes %v of %d of %s", b, len(m.Parts[i].Data), m.Parts[i].Name)
				}
			}
		}
	}
	m.Check()
}
