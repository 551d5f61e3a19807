package costs

import (
	"math"
	"testing"
)

// TestAt: the curve passes through the measured points, is straight between them, and goes on in
// proportion after the last.
func TestAt(t *testing.T) {
	c := Curve{10, 11, 12, 16, 24, 40, 130, 514}
	for i, rows := range Rows {
		if got := c.At(float64(rows)); math.Abs(got-c[i]) > 1e-9 {
			t.Errorf("%d rows: %g, measured %g", rows, got, c[i])
		}
	}
	for rows, want := range map[float64]float64{0.5: 10, 1.5: 10.5, 6: 14, 24: 32, 320: 322, 1024: 1028} {
		if got := c.At(rows); math.Abs(got-want) > 1e-9 {
			t.Errorf("%g rows: %g, want %g", rows, got, want)
		}
	}
}

// TestSmooth: a disturbed time is bounded by its neighbours, and the others stay.
func TestSmooth(t *testing.T) {
	c := Curve{10, 99, 12, 16, 24, 40, 130, 9999}
	c.Smooth()
	if want := (Curve{10, 12, 12, 16, 24, 40, 130, 520}); c != want {
		t.Errorf("%v, want %v", c, want)
	}
	for i := range c {
		c[i] = 7 * float64(Rows[i])
	}
	want := c
	if c.Smooth(); c != want {
		t.Errorf("%v, want %v", c, want)
	}
}

// TestAssumed: few rows take the time of the read, many that of the multiply-adds.
func TestAssumed(t *testing.T) {
	r := Rates{Read: 100, Products: 1000}
	table := r.Assumed(2, Slot{Bytes: 10, MACs: 50})
	if table.Products[0] != 0.02 || table.Products[4] != 0.02 || table.Products[5] != 0.032 {
		t.Errorf("%v", table.Products)
	}
	if table.Slot != 0.1 || table.PromptSlot != 0.05 {
		t.Errorf("%+v", table)
	}
	if got := table.Rates(2); math.Abs(got.Read-100) > 1e-9 || math.Abs(got.Products-1000) > 1e-9 {
		t.Errorf("%+v", got)
	}
	if half := table.Times(0.5); half.Products[0] != 0.01 || half.Slot != 0.05 || half.Message != table.Message {
		t.Errorf("%+v", half)
	}
}

// TestProduct: a product takes its start, its weights, and the quantization of its rows, which threads share from 8 rows
// on.
func TestProduct(t *testing.T) {
	table := Table{Threads: 4, Start: 1000, Round: 1, Products: Curve{1, 2, 4, 8, 16, 32, 128, 512}}
	for rows, want := range map[float64]float64{1: 1000 + 10 + 5, 4: 1000 + 40 + 20, 8: 1000 + 80 + 10, 16: 1000 + 160 + 20} {
		if got := table.Product(10, rows, 5); got != want {
			t.Errorf("%g rows: %g, want %g", rows, got, want)
		}
	}
}

// TestAttention: heads of short rows are whole tasks, so that threads can be idle. Long ones are divided.
func TestAttention(t *testing.T) {
	table := Table{Threads: 16, Slot: 1}
	for _, c := range []struct{ rows, heads, slots, want float64 }{
		{1, 8, 100, 200},   // 8 of 16 threads
		{3, 8, 100, 400},   // 24 tasks take two turns
		{4, 8, 100, 400},   //
		{1, 8, 4096, 4096}, // divided
		{0, 8, 100, 0},     //
	} {
		if got := table.Attention(c.rows, c.heads, c.slots); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%+v: %g", c, got)
		}
	}
	table.Threads = 0
	if got := table.Attention(1, 8, 100); got != 100 {
		t.Errorf("without threads: %g", got)
	}
}

// TestValid: a table with a missing or an impossible time is refused.
func TestValid(t *testing.T) {
	good := Rates{Read: 1, Products: 1}.Assumed(1, Slot{Bytes: 1, MACs: 1})
	good.Threads = 1
	if !good.Valid() {
		t.Fatal("refused")
	}
	for name, spoil := range map[string]func(*Table){
		"no threads": func(t *Table) { t.Threads = 0 },
		"no product": func(t *Table) { t.Products[0] = 0 },
		"negative":   func(t *Table) { t.Region = -1 },
		"slower":     func(t *Table) { t.Alone = 1.5 },
		"not a time": func(t *Table) { t.Slot = math.NaN() },
		"endless":    func(t *Table) { t.Byte = math.Inf(1) },
	} {
		bad := good
		spoil(&bad)
		if bad.Valid() {
			t.Errorf("%s: taken", name)
		}
	}
}
