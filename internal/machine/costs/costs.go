// Package costs is the table of the measured times of computations on one node, and the interpolation between
// them. It has no clock. Package machine measures a table, package forecast reads it.
package costs

import "math"

// Rows are the numbers of rows for which products are measured.
var Rows = [...]int{1, 2, 4, 8, 16, 32, 128, 512}

// Curve has the time of a matrix product with each of Rows rows: seconds for each weight of the matrix.
type Curve [len(Rows)]float64

// Table has the times of one node, in seconds, when all of its threads compute.
type Table struct {
	Threads  int   `json:"threads"`   // that share work; 0: it divides evenly
	Products Curve `json:"product_s"` // without Region, Start and Round
	// Start is the time of a product besides Region: threads wait for their first weights, and for the last task.
	Start float64 `json:"start_s"`
	Round float64 `json:"round_s"` // quantization of one element of a row, on one thread
	// Alone is the time of a product while the other nodes of the machine compute nothing, as a share of its time
	// while they compute; 1: nodes share nothing.
	Alone float64 `json:"alone"`
	// Region is the time to give every thread a task and to wait until all are done.
	Region  float64 `json:"region_s"`
	Element float64 `json:"element_s"` // norm and residual sum of an element of a row, on one thread
	// Slot is the time in which one decode row attends to one slot of its cache, with all heads of a
	// layer. PromptSlot is the same for a row of a prompt, which shares its reads with other rows.
	Slot       float64 `json:"slot_s"`
	PromptSlot float64 `json:"prompt_slot_s"`
	Sample     float64 `json:"sample_s"` // one token, drawn from all logits of a row on one thread

	Exchange float64 `json:"exchange_s"` // software of one exchange, without messages
	Message  float64 `json:"message_s"`  // software for sending or receiving one message
	Byte     float64 `json:"byte_s"`     // software for each byte of a message
	Copy     float64 `json:"copy_s"`     // copy of a byte within memory, on one thread
}

// Valid reports whether every time was measured.
func (t *Table) Valid() bool {
	times := append(t.Products[:], t.Region, t.Start, t.Round, t.Element, t.Slot, t.PromptSlot, t.Sample,
		t.Exchange, t.Message, t.Byte, t.Copy)
	for _, v := range times {
		if !(v >= 0) || math.IsInf(v, 1) {
			return false
		}
	}
	return t.Threads > 0 && t.Alone > 0 && t.Alone <= 1 && t.Products[0] > 0 && t.Products[len(Rows)-1] > 0
}

// Product returns the time of a product of rows with some columns.
func (t *Table) Product(weights, rows, columns float64) float64 {
	threads := 1.0
	if rows >= roundingRows {
		threads = float64(max(1, t.Threads))
	}
	return weights*t.Products.At(rows) + t.Start + math.Ceil(rows/threads)*columns*t.Round
}

// roundingRows is the number of rows from which threads share their quantization (tensor.manyTokens).
const roundingRows = 8

// At returns the seconds of a product for each weight. It interpolates between Rows. Beyond the last,
// each row takes equally long.
func (c *Curve) At(rows float64) float64 {
	last := len(Rows) - 1
	if rows <= float64(Rows[0]) {
		return c[0]
	}
	for i := range last {
		if lo, hi := float64(Rows[i]), float64(Rows[i+1]); rows <= hi {
			return c[i] + (c[i+1]-c[i])*(rows-lo)/(hi-lo)
		}
	}
	return c[last] * rows / float64(Rows[last])
}

// Smooth lowers times that other programs disturbed: fewer rows take no longer than more rows, and more rows
// no longer than several products of fewer.
func (c *Curve) Smooth() {
	last := len(Rows) - 1
	for i := range last {
		c[last-1-i] = min(c[last-1-i], c[last-i])
	}
	for i := range last {
		c[i+1] = min(c[i+1], c[i]*float64(Rows[i+1])/float64(Rows[i]))
	}
}

// Times returns a copy in which computations take f times as long. Exchanges do not change.
func (t Table) Times(f float64) Table {
	for i := range t.Products {
		t.Products[i] *= f
	}
	t.Slot, t.PromptSlot = t.Slot*f, t.PromptSlot*f
	return t
}

// Rates are the two speeds that bound a node.
type Rates struct {
	Read     float64 // bytes of memory a second
	Products float64 // multiply-adds a second
}

// Slot is the work of attention for one row and one slot, with all heads of a layer.
type Slot struct {
	Bytes float64
	MACs  float64 // multiply-adds
}

// Assumed returns a table in which reads and multiply-adds overlap, so that each computation takes the
// longer of the two. weight is the bytes of a weight.
func (r Rates) Assumed(weight float64, s Slot) (t Table) {
	for i, rows := range Rows {
		t.Products[i] = max(weight/r.Read, float64(rows)/r.Products)
	}
	t.Slot, t.PromptSlot, t.Alone = max(s.Bytes/r.Read, s.MACs/r.Products), s.MACs/r.Products, 1
	return t
}

// Rates returns the speeds that a table shows: of one row, and of the most rows.
func (t *Table) Rates(weight float64) Rates {
	last := len(Rows) - 1
	return Rates{Read: weight / t.Products[0], Products: float64(Rows[last]) / t.Products[last]}
}

// Attention returns the time of attention in one layer. Each of rows decode rows reads slots slots with
// each of heads heads. A head of a row is a task of one thread, unless it is long enough to be divided.
func (t *Table) Attention(rows, heads, slots float64) float64 {
	work := rows * slots * t.Slot
	threads, tasks := float64(t.Threads), rows*heads
	if threads == 0 || tasks == 0 || slots > longSlots {
		return work
	}
	return work * math.Ceil(tasks/threads) * threads / tasks
}

// longSlots is the number of slots above which several threads share a head of a row (layer.worthSplitting).
const longSlots = 1024
