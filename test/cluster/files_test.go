package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestChaosFiles: the rows of sequences are in files. The owner of some is killed, then another one
// is drained. The sequences equal those in memory, and surviving nodes continue from their files.
func TestChaosFiles(t *testing.T) {
	testlevel.NeedLong(t)
	r := rand.New(rand.NewPCG(11, 12))
	var reqs []request
	for i := range 10 {
		b := map[string]any{"prompt": ids(r, 640+16*i), "max_tokens": 60, "stream": true, "logprobs": 5,
			"return_tokens_as_token_ids": true, "ignore_eos": true,
			"temperature": 0.9, "seed": i, "speculate": "off", "kv_policy": "shadowkv:chunk=8,budget=32,outliers=2,local=1,int8=1"}
		switch i % 4 {
		case 1:
			b["kv_policy"] = "shadowkv:chunk=8,budget=32,outliers=2,local=1,int8=1,keys=lowrank,rank=48"
		case 2:
			b["kv_policy"] = "quest:page=16,budget=64"
		case 3:
			b["kv_policy"] = "snapstream:sink=4,recent=20,topk=28,obs=16,recall=32"
		}
		reqs = append(reqs, request{fmt.Sprintf("stream %d (%s)", i, b["kv_policy"]), "/v1/completions", b})
	}
	want, _ := up(t, 1, "--prefix-cache", "off").undisturbed(t, reqs)
	c := up(t, 3, "--prefix-cache", "off", "--replicas", "0", "--kv-memory", "18MiB", "--kv-disk",
		filepath.Join(t.TempDir(), "kv"), "--kv-disk-size", "3GiB")
	wentOn, restored := 0, uint64(0)
	for _, fault := range []string{"kill -9", "drain"} {
		f := c.open(reqs)
		victim := ""
		testutil.Eventually(t, patience, "sequences in files on two nodes", func() (bool, string) {
			most, with, states := int64(0), 0, []string{}
			victim = ""
			for _, n := range c.state().Nodes {
				states = append(states, fmt.Sprintf("%s: %d of %d bytes in files, %d sequences", n.ID, n.KVDiskUsedBytes, n.KVUsedBytes, n.Sequences))
				if n.KVDiskUsedBytes == 0 || n.Sequences == 0 {
					continue
				}
				if with++; n.KVDiskUsedBytes > most {
					most, victim = n.KVDiskUsedBytes, n.ID
				}
			}
			if f.ended.Load() == int64(len(reqs)) {
				t.Fatal("the streams ended before")
			}
			return with > 1, strings.Join(states, ", ")
		})
		before := c.state()
		if fault == "drain" {
			c.want(202, "POST", "/v1/nodes/"+victim+"/drain", nil)
		} else {
			c.signal(victim, syscall.SIGKILL)
		}
		reserved := int64(0)
		testutil.Eventually(t, recoverLimit, "another epoch", func() (bool, string) {
			s := c.state()
			reserved = 0
			for _, n := range s.Nodes {
				if n.ID != victim {
					reserved += n.KVDiskReserved
				}
			}
			return s.Epoch > before.Epoch && s.Running > 0, fmt.Sprintf("epoch %d, %d running", s.Epoch, s.Running)
		})
		if reserved > 0 { // no prompt can have been read again yet
			wentOn++
		}
		got, stall := f.wait(t)
		after := c.state()
		if after.Recovery != nil && before.Recovery != nil {
			restored += uint64(after.Recovery.RestoredCaches - before.Recovery.RestoredCaches)
		}
		t.Logf("%s of %s: longest silence %.2f s, epoch %d to %d, %d caches restored so far", fault,
			victim, stall.Seconds(), before.Epoch, after.Epoch, restored)
		same(t, fault+" of "+victim, reqs, want, got)
		if after.Epoch == before.Epoch {
			t.Errorf("%s of %s: still epoch %d", fault, victim, after.Epoch)
		}
		for _, n := range after.Nodes {
			if n.KVDiskFailures > 0 {
				t.Errorf("%s: %d failures of its files", n.ID, n.KVDiskFailures)
			}
		}
		c.waitIdle(patience)
	}
	if wentOn == 0 || restored == 0 { // except a file that was being written at that moment
		t.Errorf("after both, %d caches went on, in files after %d faults", restored, wentOn)
	}
}
