package tensor

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// longShapes are the attention of a layer: KV heads, query heads of each, layout.
var longShapes = []struct {
	name  string
	heads int
	g     int
	tasks int // per KV head: latent heads are divided
	l     KVLayout
}{
	{"8B", 8, 4, 1, KVLayout{Type: BF16, KDim: 128, VDim: 128}},
	{"1B", 8, 4, 1, KVLayout{Type: BF16, KDim: 64, VDim: 64}},
	{"V3", 1, 32, 4, KVLayout{Type: BF16, KDim: 576, VDim: 512, Latent: true}},
}

// BenchmarkLongDecode is attention of one token of one sequence in one layer: by heads, as tasks
// are cut if there are enough of them, and by runs. Its caches belong to more layers than fit in
// the last-level cache. SHOAL_LONG=8B,1B selects shapes, SHOAL_THREADS=1,8 threads,
// SHOAL_SLOTS=1024 slots.
func BenchmarkLongDecode(b *testing.B) {
	picked := func(key, all string) []string {
		if v := os.Getenv(key); v != "" {
			all = v
		}
		return strings.Split(all, ",")
	}
	for _, shape := range longShapes {
		for _, slots := range picked("SHOAL_SLOTS", "1024,8192,32768,131072") {
			n, _ := strconv.Atoi(slots)
			if !strings.Contains(strings.Join(picked("SHOAL_LONG", "8B"), ","), shape.name) {
				continue
			}
			layers := max(1, (256<<20)/(n*shape.heads*shape.l.RowBytes()))
			caches := make([][][]byte, layers*shape.heads)
			row := make([]float32, shape.l.KDim)
			for i := range row {
				row[i] = float32(i%13-6) * 0.1
			}
			pool := NewPool(0)
			pool.Run(len(caches), func(i int) {
				memory := make([]byte, (n+BlockSlots-1)/BlockSlots*shape.l.BlockBytes())
				k := append([]float32(nil), row...)
				for s := range n {
					if s%BlockSlots == 0 {
						caches[i] = append(caches[i], memory[:shape.l.BlockBytes():shape.l.BlockBytes()])
						memory = memory[shape.l.BlockBytes():]
					}
					k[s%len(k)] += 0.01
					shape.l.Put(caches[i][s/BlockSlots], s%BlockSlots, k, k[:shape.l.VDim])
				}
			})
			pool.Close()
			g, width := shape.g, shape.g*shape.l.VDim
			tasks := shape.heads * shape.tasks
			q := make([]float32, tasks*g*shape.l.KDim)
			for i := range q {
				q[i] = float32(i%17-8) * 0.1
			}
			out := make([]float32, tasks*width)
			for _, threads := range picked("SHOAL_THREADS", "1,2") {
				count, _ := strconv.Atoi(threads)
				pool := NewPool(count)
				scratch := make([]AttnScratch, max(tasks, 1024))
				at := func(layer, task int) (q1 []float32, blocks [][]byte, o []float32) {
					return q[task*g*shape.l.KDim:][:g*shape.l.KDim], caches[layer*shape.heads+task/shape.tasks], out[task*width:][:width]
				}
				report := func(b *testing.B) {
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "us/layer")
					b.ReportMetric(float64(n*shape.heads*shape.l.RowBytes())*float64(b.N)/b.Elapsed().Seconds()/1e9, "GB/s")
				}
				b.Run(fmt.Sprintf("%s/%d/threads=%d/heads", shape.name, n, count), func(b *testing.B) {
					for i := range b.N {
						pool.Run(tasks, func(t int) {
							q1, blocks, o := at(i%layers, t)
							Attend(o, q1, g, Score{Scale: 0.1}, shape.l, blocks, n, nil, &scratch[t])
						})
					}
					report(b)
				})
				b.Run(fmt.Sprintf("%s/%d/threads=%d/runs", shape.name, n, count), func(b *testing.B) {
					runs := make([]Runs, tasks)
					all := (n + RunSlots - 1) / RunSlots
					pieces := min(all, max(1, (2*count+tasks-1)/tasks))
					for i := range b.N {
						for t := range tasks {
							q1, blocks, _ := at(i%layers, t)
							runs[t].Begin(q1, g, Score{Scale: 0.1}, shape.l, blocks, n, nil, nil)
						}
						pool.Run(tasks*pieces, func(j int) {
							t, p := j/pieces, j%pieces
							runs[t].Attend(p*all/pieces, (p+1)*all/pieces, &scratch[j%len(scratch)])
						})
						pool.Run(tasks, func(t int) {
							_, _, o := at(i%layers, t)
							runs[t].Fold(o)
						})
					}
					report(b)
				})
				pool.Close()
			}
		}
	}
}
