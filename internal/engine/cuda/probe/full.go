package probe

import (
	"errors"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
)

// Result is the result of one step of a full examination.
type Result struct {
	Step    int           `json:"step"`
	Name    string        `json:"name"`
	Kernels []string      `json:"kernels,omitempty"`
	Problem string        `json:"problem,omitempty"`
	Took    time.Duration `json:"took_ns"`
	Speed   *Speed        `json:"speed,omitempty"` // of a measurement
	Times   *Times        `json:"times,omitempty"` // of a step of a model
	// Ended is true if the driver refuses all further work of this process.
	Ended bool `json:"ended,omitempty"`
}

// step is a part of a full examination.
type step struct {
	name    string
	kernels []string
	run     func(k *card, r *Result) error
}

// steps lists all comparisons, the measurements, and the functions of one number for all inputs.
func steps() (all []step) {
	for _, c := range comparisons {
		all = append(all, step{"bits: " + c.name, c.kernels, func(k *card, _ *Result) error { return k.compare(c) }})
	}
	for _, m := range measurements() {
		all = append(all, step{"speed: " + m.name, nil, func(k *card, r *Result) (err error) {
			r.Speed, err = k.speed(m)
			return err
		}})
	}
	for _, c := range stepCases {
		all = append(all, step{"times: " + c.String(), nil, func(k *card, r *Result) (err error) {
			r.Times, err = k.times(llama8B, c)
			return err
		}})
	}
	for i, f := range functions {
		all = append(all, step{"all inputs: " + f.name, []string{"function_of_bits"}, func(k *card, _ *Result) error { return k.allInputs(i) }})
	}
	return all
}

// Steps returns the number of steps of Full.
func Steps() int { return len(steps()) }

// Full does the steps from one on whose names contain a text, on the first card, and reports each.
// Before a step it calls begin. It returns early after a step that broke the driver's context.
func Full(from int, text string, begin func(step int, name string), report func(Result)) (err error) {
	driver, err := cuda.Open()
	if err != nil {
		return err
	}
	devices, err := driver.Devices()
	if err != nil {
		return err
	}
	if len(devices) == 0 {
		return errors.New("the driver finds no card")
	}
	c, err := devices[0].Use()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	k, err := open(c)
	if err != nil {
		return err
	}
	for i, s := range steps() {
		if i < from || !strings.Contains(s.name, text) {
			continue
		}
		begin(i, s.name)
		start := time.Now()
		r := Result{Step: i, Name: s.name, Kernels: s.kernels}
		failed := s.run(k, &r)
		if r.Took = time.Since(start); failed != nil {
			r.Problem, r.Ended = failed.Error(), broken(failed)
		}
		report(r)
		if r.Ended {
			return nil
		}
	}
	return nil
}
