package probe

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/emulator"
)

var tinyCases = []stepCase{{1, 70, false, false}, {9, 40, true, false}}

// tinyTimes measures steps of a small model in this process.
func tinyTimes(out *json.Encoder) error {
	driver, err := cuda.Open()
	if err != nil {
		return err
	}
	devices, err := driver.Devices()
	if err != nil {
		return err
	}
	c, err := devices[0].Use()
	if err != nil {
		return err
	}
	k, err := open(c)
	if err != nil {
		return err
	}
	k.runs = 1 // the emulated card is slow
	for _, s := range tinyCases {
		t, err := k.times(shape{1, 64, 96, 80, 4, 2, 64, 1 << 16}, s)
		if err = errors.Join(err, out.Encode(t)); err != nil {
			return err
		}
	}
	return c.Close()
}

// The kernels of a step are measured, in the order of a layer, and read each weight and each cache once.
func TestTimes(t *testing.T) {
	d := json.NewDecoder(bytes.NewReader(output(t, "SHOAL_PROBE_TIMES=1", "LD_LIBRARY_PATH="+emulator.Build(t),
		"CUDA_EMULATOR_MEMORY=64000000")))
	matrices := int64((256+256)*64+64*256+2*96*64+64*96+80*64) * 34 / 32
	for i, s := range tinyCases {
		var got Times
		if err := d.Decode(&got); err != nil {
			t.Fatal(err)
		}
		sequences := int64(s.rows)
		if s.prompt {
			sequences = 1
		}
		if want := matrices + sequences*2*int64(s.slots)*2*64*2; got.Bytes != want {
			t.Errorf("case %d: a step reads %d bytes, want %d", i, got.Bytes, want)
		}
		launches := 0
		for _, k := range got.Kernels {
			launches += k.Launches
			if k.Alone <= 0 {
				t.Errorf("case %d: %s of %s took no time", i, k.Kernel, k.Stage)
			}
		}
		if got.Layers != 1 || got.Read <= 0 || got.Whole <= 0 || got.Sum() <= 0 || launches != launchesOf[i] {
			t.Errorf("case %d: %d launches, want %d: %+v", i, launches, launchesOf[i], got)
		}
	}
}

// launchesOf are the launches of the steps: a layer, the last norm, the logits and the two kernels of the best token.
var launchesOf = []int{10 + 4, 10 + 4}
