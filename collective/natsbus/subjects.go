package natsbus

import (
	"fmt"
	"strconv"
	"strings"
)

// subjects builds the subjects of one rank of one group in one epoch.
type subjects struct {
	prefix string // tp.<cluster>.<group>.<epoch>
	rank   int
	me     string
}

func newSubjects(cluster, group string, epoch uint32, rank int) subjects {
	return subjects{fmt.Sprintf("tp.%s.%s.%d", cluster, group, epoch), rank, strconv.Itoa(rank)}
}

func (s subjects) broadcast(src int) string { return s.prefix + ".b." + strconv.Itoa(src) }
func (s subjects) direct(dst, src int) string {
	return s.prefix + ".p." + strconv.Itoa(dst) + "." + strconv.Itoa(src)
}

// call returns the subject on which rank src announces its address to rank dst.
func (s subjects) call(dst, src int) string {
	return s.prefix + ".a." + strconv.Itoa(dst) + "." + strconv.Itoa(src)
}
func (s subjects) allCalls() string      { return s.prefix + ".a." + s.me + ".*" }
func (s subjects) allBroadcasts() string { return s.prefix + ".b.*" }
func (s subjects) allMine() string       { return s.prefix + ".p." + s.me + ".*" }

// source returns the rank that a subject names as its source, its last token; -1 if it is not a rank
// below size.
func source(subject string, size int) int {
	src, err := strconv.Atoi(subject[strings.LastIndexByte(subject, '.')+1:])
	if err != nil || src < 0 || src >= size {
		return -1
	}
	return src
}

// from lists the subjects on which rank src sends to this one. The index is the subscription id.
func (s subjects) from(src int) []string {
	return []string{subBroadcast: s.broadcast(src), subDirect: s.direct(s.rank, src)}
}

const (
	subBroadcast = iota
	subDirect
)
