package link

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Keys lists the settings that Set accepts.
const Keys = "rate, delay, jitter, queue, loss, reorder, duplicate"

// Set sets one setting from text: rate=1gbit, delay=50us, jitter=5us, queue=512KiB, loss=0.1%,
// reorder=1%, duplicate=1%. A rate of 0 is unlimited.
func (s *Settings) Set(key, value string) (err error) {
	switch key {
	case "rate":
		s.Rate, err = parseRate(value)
	case "delay":
		s.Delay, err = parseDelay(value)
	case "jitter":
		s.Jitter, err = parseDelay(value)
	case "queue":
		s.Queue, err = parseQueue(value)
	case "loss":
		s.Loss, err = parseProbability(value)
	case "reorder":
		s.Reorder, err = parseProbability(value)
	case "duplicate":
		s.Duplicate, err = parseProbability(value)
	default:
		return fmt.Errorf("a link has no setting %q: want one of %s", key, Keys)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// unit splits a number from one of the units, whose values are in the same order.
func unit(text string, names []string, values []float64) (float64, bool) {
	for i, name := range names {
		if number, ok := strings.CutSuffix(strings.ToLower(text), name); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
			return n * values[i], err == nil && n >= 0 && n*values[i] < 1e18
		}
	}
	return 0, false
}

func parseRate(text string) (int64, error) {
	if text == "0" {
		return 0, nil
	}
	v, ok := unit(text, []string{"gbit", "mbit", "kbit"}, []float64{1e9 / 8, 1e6 / 8, 1e3 / 8})
	if !ok || v < 1 {
		return 0, fmt.Errorf("%q is not a rate: want a number with gbit, mbit or kbit, such as 1gbit, or 0 for no limit", text)
	}
	return int64(v), nil
}

const longestDelay = time.Minute

func parseDelay(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > longestDelay {
		return 0, fmt.Errorf("%q is not a delay: want 0 to %v with a unit, such as 50us", text, longestDelay)
	}
	return d, nil
}

func parseQueue(text string) (int, error) {
	v, ok := unit(text, []string{"mib", "kib"}, []float64{1 << 20, 1 << 10})
	if !ok || v < 1<<10 || v > 1<<30 {
		return 0, fmt.Errorf("%q is not a queue: want 1KiB to 1024MiB, such as 512KiB", text)
	}
	return int(v), nil
}

func parseProbability(text string) (float64, error) {
	v, ok := unit(text, []string{"%"}, []float64{0.01})
	if !ok || v > 1 {
		return 0, fmt.Errorf("%q is not a share of packets: want 0%% to 100%%, such as 0.1%%", text)
	}
	return v, nil
}
