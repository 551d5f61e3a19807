// Package sentencepiece reads the files of the sentencepiece library (*.model) and normalizes texts like
// it.
package sentencepiece

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Types of pieces (sentencepiece_model.proto; GGUF has the same numbers).
const (
	Normal      = 1
	Unknown     = 2
	Control     = 3
	UserDefined = 4
	Unused      = 5
	Byte        = 6
)

// Kinds of models.
const (
	Unigram = 1
	BPE     = 2
)

// Piece is an entry of the vocabulary. Its id is its index.
type Piece struct {
	Text  string
	Score float32
	Type  int
}

// Model is a ModelProto, without the fields for training only.
type Model struct {
	Pieces       []Piece
	Kind         int
	ByteFallback bool
	BOS, EOS     int // ids of control pieces, -1: none
	Charsmap     []byte

	DummyPrefix, RemoveExtra, Escape, Suffix bool // see Normalizer
}

// maxPieces bounds the vocabulary; the largest published one has about 262,000 pieces.
const maxPieces = 1 << 21

// Parse reads a serialized ModelProto.
func Parse(data []byte) (*Model, error) {
	m := &Model{Kind: Unigram, BOS: 1, EOS: 2, DummyPrefix: true, RemoveExtra: true, Escape: true}
	err := fields(data, func(num protowire.Number, f field) (err error) {
		switch num {
		case 1:
			var p Piece
			if p, err = parsePiece(f); err == nil && len(m.Pieces) >= maxPieces {
				err = fmt.Errorf("more than %d pieces", maxPieces)
			}
			m.Pieces = append(m.Pieces, p)
		case 2:
			err = m.trainer(f)
		case 3:
			err = m.normalizer(f)
		}
		return err
	})
	if err == nil && len(m.Pieces) == 0 {
		err = errors.New("no pieces")
	}
	return m, err
}

func parsePiece(f field) (Piece, error) {
	p := Piece{Type: Normal}
	data, err := f.message()
	if err != nil {
		return p, err
	}
	err = fields(data, func(num protowire.Number, f field) (err error) {
		switch num {
		case 1:
			var text []byte
			if text, err = f.message(); err == nil && !utf8.Valid(text) {
				err = errors.New("a piece is not valid UTF-8")
			}
			p.Text = string(text)
		case 2:
			if f.kind != protowire.Fixed32Type {
				return errors.New("the score of a piece is not a float")
			}
			p.Score = math.Float32frombits(uint32(f.number))
			if p.Score != p.Score {
				err = errors.New("the score of a piece is NaN")
			}
		case 3:
			err = f.integer(&p.Type)
		}
		return err
	})
	return p, err
}

func (m *Model) trainer(f field) error {
	data, err := f.message()
	if err != nil {
		return err
	}
	return fields(data, func(num protowire.Number, f field) error {
		switch num {
		case 3:
			return f.integer(&m.Kind)
		case 24:
			return f.boolean(&m.Suffix)
		case 35:
			return f.boolean(&m.ByteFallback)
		case 41:
			return f.integer(&m.BOS)
		case 42:
			return f.integer(&m.EOS)
		}
		return nil
	})
}

func (m *Model) normalizer(f field) error {
	data, err := f.message()
	if err != nil {
		return err
	}
	return fields(data, func(num protowire.Number, f field) (err error) {
		switch num {
		case 2:
			m.Charsmap, err = f.message()
		case 3:
			err = f.boolean(&m.DummyPrefix)
		case 4:
			err = f.boolean(&m.RemoveExtra)
		case 5:
			err = f.boolean(&m.Escape)
		}
		return err
	})
}

// field is a value of the wire format.
type field struct {
	kind   protowire.Type
	number uint64 // of a varint or of fixed width
	bytes  []byte
}

func (f field) message() ([]byte, error) {
	if f.kind != protowire.BytesType {
		return nil, errors.New("a field that must be a message or text holds a number")
	}
	return f.bytes, nil
}

// integer reads an int32 or an enumeration.
func (f field) integer(to *int) error {
	if f.kind != protowire.VarintType {
		return errors.New("a field that is an integer has another type")
	}
	*to = int(int32(f.number))
	return nil
}

func (f field) boolean(to *bool) error {
	if f.kind != protowire.VarintType {
		return errors.New("a field that is a boolean has another type")
	}
	*to = f.number != 0
	return nil
}

// fields calls yield for the fields of a message, in order.
func fields(data []byte, yield func(protowire.Number, field) error) error {
	for len(data) > 0 {
		num, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		f := field{kind: kind}
		switch kind {
		case protowire.VarintType:
			f.number, n = protowire.ConsumeVarint(data)
		case protowire.Fixed32Type:
			var v uint32
			v, n = protowire.ConsumeFixed32(data)
			f.number = uint64(v)
		case protowire.Fixed64Type:
			f.number, n = protowire.ConsumeFixed64(data)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(data)
		default:
			n = protowire.ConsumeFieldValue(num, kind, data)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if err := yield(num, f); err != nil {
			return err
		}
	}
	return nil
}
