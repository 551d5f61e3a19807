package dequant

import (
	_ "embed"
	"strconv"
	"strings"
	"sync"
)

// gridsText has a line for each grid of ggml-common.h: its name, the values of the digits, and the
// digits of all entries.
//
//go:embed grids.txt
var gridsText string

// The grids, in the order of the lines.
const (
	gridIQ2XXS = iota
	gridIQ2XS
	gridIQ2S
	gridIQ3XXS
	gridIQ3S
	gridIQ1S
	gridCount
)

// gridSizes are the elements of an entry and the number of entries.
var gridSizes = [gridCount]struct{ width, entries int }{{8, 256}, {8, 512}, {8, 1024}, {4, 256}, {4, 512}, {8, 2048}}

type grid struct {
	width  int
	values []float32
}

func (g *grid) entry(i uint32) []float32 { return g.values[int(i)*g.width:][:g.width] }

// grids parses the text once.
var grids = sync.OnceValue(func() (out [gridCount]grid) {
	i := 0
	for line := range strings.Lines(gridsText) {
		field := strings.Fields(line)
		var value []float32
		for _, v := range strings.Split(field[1], ",") {
			n, err := strconv.Atoi(v)
			if err != nil {
				panic(err) // the text is part of the program
			}
			value = append(value, float32(n))
		}
		out[i] = grid{gridSizes[i].width, make([]float32, gridSizes[i].width*gridSizes[i].entries)}
		for k := range out[i].values {
			out[i].values[k] = value[field[2][k]-'0']
		}
		i++
	}
	return out
})
