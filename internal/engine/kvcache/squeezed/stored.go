package squeezed

import (
	"encoding/binary"
	"math"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/results"
)

// Stored results (package results). Of each head on its socket: the labels of its clustered tokens in
// their last form, int32, little endian. Of a whole prompt on its owner: both thresholds, float32.

const (
	labelsKind     = "clusters"
	thresholdsKind = "thresholds"
)

// encodeLabels appends labels to dst.
func encodeLabels(dst []byte, labels []int32) []byte {
	for _, label := range labels {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(label))
	}
	return dst
}

// decodeLabels fills labels, and returns false if src has none that Prepare can have computed. Then
// labels are undefined.
func (c clusters) decodeLabels(labels []int32, src []byte) bool {
	n := len(labels)
	if len(src) != 4*n {
		return false
	}
	seen, clusters := make([]bool, n), 0
	for i := range labels {
		label := int32(binary.LittleEndian.Uint32(src[4*i:]))
		labels[i] = label
		switch {
		case int(label) >= n || label < 0 && c.coarse == 0:
			return false
		case label < 0: // the first token of a cluster
			seen[i] = true
			clusters++
		case c.coarse > 0 && (int(label) >= i || !seen[label]):
			return false
		case !seen[label]:
			seen[label] = true
			clusters++
		}
	}
	if clusters > c.most(0, n) {
		return false
	}
	for _, label := range labels {
		if label < 0 && int(-1-label) >= c.groups(clusters) {
			return false
		}
	}
	return true
}

// recallLabels fills the labels of a head with those that were computed before.
func (c clusters) recallLabels(stored *results.Prompt, layer, head int, labels []int32) bool {
	src := stored.Recall(labelsKind, layer, head, 4*len(labels))
	if src == nil {
		return false
	}
	found := make([]int32, len(labels))
	if !c.decodeLabels(found, src) {
		return false
	}
	copy(labels, found)
	return true
}

// keepLabels stores the complete labels of a head.
func keepLabels(stored *results.Prompt, layer, head int, labels []int32) {
	if stored == nil {
		return
	}
	value := encodeLabels(make([]byte, 0, 4*len(labels)), labels)
	stored.Keep(labelsKind, layer, head, len(value), func(dst []byte) []byte { return append(dst, value...) })
}

const boundsSize = 8

// recallThresholds returns the thresholds that were computed before: the logarithms that the index has.
func (b *built) recallThresholds() {
	src := b.s.Results.Recall(thresholdsKind, 0, 0, boundsSize)
	if src == nil {
		return
	}
	coarse, fine := math.Float32frombits(binary.LittleEndian.Uint32(src)), math.Float32frombits(binary.LittleEndian.Uint32(src[4:]))
	if coarse != coarse || fine != fine {
		return
	}
	b.recalled = &[2]float32{coarse, fine}
}

// keepThresholds stores the thresholds.
func (b *built) keepThresholds(coarse, fine float32) {
	value := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, math.Float32bits(coarse)), math.Float32bits(fine))
	b.s.Results.Keep(thresholdsKind, 0, 0, boundsSize, func(dst []byte) []byte { return append(dst, value...) })
}
