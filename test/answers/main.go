// Command answers records what the cluster answers, token ids and the bits of their log
// probabilities, for every architecture, cache policy, type of weights and type of cache,
// and compares such a record with what this tree answers. It is the net under changes
// that must not change a bit.
//
//	go run ./test/answers                     compare with the record of the tree
//	go run ./test/answers -only '^llama '     a part of it, by the first words of the keys
//	go run ./test/answers -record FILE        write a record
//	go run ./test/answers -compare FILE       compare with another one
//
// The bits of an answer depend on the model, the types and the request alone, so one
// record holds for every processor and every set of kernels (SHOAL_CPU), and an answer is
// written down once for all the ways to cut it: nodes, mapping, shares, chunks, threads,
// the other sequences of the batch. Each is asked in several of them, and all must agree.
//
// It knows the cluster by cluster.New and api.Engine only, and policies by their text:
// the same source builds on older commits. It runs in the root of the module, in one
// process, without a network. An answer that the record lacks (a new policy or
// architecture) is listed and is no failure; one that only the record has is.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"time"
)

// recorded is the record of 6a8247c; what was changed on purpose since is in its log.
const recorded = "test/answers/testdata/answers.txt"

// errDiffers means that the differences were printed.
var errDiffers = errors.New("answers: there are differences")

func main() {
	record := flag.String("record", "", "write the answers to this `file` instead of comparing them")
	compare := flag.String("compare", recorded, "compare with this `file`")
	only := flag.String("only", "", "answers whose \"model weights cache\" matches this `regexp` only")
	workers := flag.Int("workers", runtime.GOMAXPROCS(0), "clusters at a time")
	flag.Parse()
	if err := command(*record, *compare, *only, *workers); err != nil {
		if !errors.Is(err, errDiffers) {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
}

func command(recordTo, compareWith, only string, workers int) error {
	match, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	began := time.Now()
	var before *record
	if recordTo == "" {
		if before, err = readRecord(compareWith); err != nil {
			return fmt.Errorf("answers: in the root of the module, or with -compare FILE: %w", err)
		}
	}
	now, err := runAll(".", match, workers)
	if err != nil {
		return err
	}
	if recordTo != "" {
		if err := now.write(recordTo); err != nil {
			return err
		}
		fmt.Printf("%d answers recorded in %.0f s, each in up to %d ways\n", len(now.order), time.Since(began).Seconds(), len(cuts))
		return nil
	}
	before.keep(match)
	d := before.differences(now)
	for _, line := range d.lines() {
		fmt.Println(line)
	}
	fmt.Printf("%d answers compared in %.0f s: %d the same, %d differ, %d are gone, %d are new\n",
		len(now.order), time.Since(began).Seconds(), d.same, len(d.differ), len(d.gone), len(d.fresh))
	if len(d.differ)+len(d.gone) > 0 {
		return errDiffers
	}
	return nil
}
