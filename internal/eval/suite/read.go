package suite

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
)

const (
	// maxRecord bounds one question in bytes: the longest book of Infinite-Bench has 4 MB.
	maxRecord = 32 << 20
	// maxTexts bounds the prompts of one task in bytes.
	maxTexts = 1 << 30
)

// collector takes the questions of one task up to a limit.
type collector struct {
	limit, bytes int
	questions    []Question
}

// add adds a question and reports whether the limit allows more.
func (c *collector) add(q Question) (bool, error) {
	if c.bytes += len(q.Prompt); c.bytes > maxTexts {
		return false, fmt.Errorf("the prompts have more than %d bytes: read fewer with a limit", maxTexts)
	}
	c.questions = append(c.questions, q)
	return c.limit <= 0 || len(c.questions) < c.limit, nil
}

// lines reads a file of JSON lines. parse makes a question of one line.
func lines(dir fs.FS, name string, limit int, parse func(line []byte) (Question, error)) ([]Question, error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrData, err)
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	in.Buffer(nil, maxRecord)
	c := collector{limit: limit}
	n := 1
	for more := true; more && in.Scan(); n++ {
		if len(bytes.TrimSpace(in.Bytes())) == 0 {
			continue
		}
		q, err := parse(in.Bytes())
		if err == nil {
			if q.ID == "" {
				q.ID = strconv.Itoa(n)
			}
			more, err = c.add(q)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %s, line %d: %w", ErrData, name, n, err)
		}
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("%w: %s, line %d: %w", ErrData, name, n, err)
	}
	if len(c.questions) == 0 {
		return nil, fmt.Errorf("%w: %s has no question", ErrData, name)
	}
	return c.questions, nil
}

// array reads a file that is one JSON array. parse makes a question of one element.
func array(dir fs.FS, name string, limit int, parse func(element []byte) (Question, error)) ([]Question, error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrData, err)
	}
	defer f.Close()
	c := collector{limit: limit}
	err = elements(f, func(n int, raw []byte) (bool, error) {
		q, err := parse(raw)
		if err != nil {
			return false, err
		}
		if q.ID == "" {
			q.ID = strconv.Itoa(n)
		}
		return c.add(q)
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %s, %w", ErrData, name, err)
	}
	if len(c.questions) == 0 {
		return nil, fmt.Errorf("%w: %s has no question", ErrData, name)
	}
	return c.questions, nil
}

// elements calls each with the elements of a JSON array, counted from 1, while it returns true.
func elements(f io.Reader, each func(n int, raw []byte) (bool, error)) error {
	in := &allowance{in: f, left: maxRecord}
	d := json.NewDecoder(in)
	if first, err := d.Token(); err != nil || first != json.Delim('[') {
		return fmt.Errorf("line 1: not a JSON array of questions (%w)", errors.Join(err, errNoArray))
	}
	for n := 1; d.More(); n++ {
		var raw json.RawMessage
		in.left = maxRecord
		err := d.Decode(&raw)
		more := false
		if err == nil {
			more, err = each(n, raw)
		}
		if err != nil {
			return fmt.Errorf("question %d, before byte %d: %w", n, d.InputOffset(), err)
		}
		if !more {
			return nil
		}
	}
	if _, err := d.Token(); err != nil {
		return fmt.Errorf("after byte %d: the array does not end: %w", d.InputOffset(), err)
	}
	return nil
}

var errNoArray = errors.New("it starts with something else")

// allowance is a reader that fails after a number of bytes, so that a decoder cannot buffer more.
type allowance struct {
	in   io.Reader
	left int
}

func (a *allowance) Read(p []byte) (int, error) {
	if a.left <= 0 {
		return 0, fmt.Errorf("a question has more than %d bytes", maxRecord)
	}
	n, err := a.in.Read(p[:min(len(p), a.left)])
	a.left -= n
	return n, err
}

// texts is a string, a number, or a list of these. An empty string is no text.
type texts []string

func (t *texts) UnmarshalJSON(b []byte) error {
	var list []json.RawMessage
	if json.Unmarshal(b, &list) != nil {
		list = []json.RawMessage{b}
	}
	*t = nil
	for _, x := range list {
		var s string
		var n json.Number
		switch {
		case json.Unmarshal(x, &s) == nil:
		case json.Unmarshal(x, &n) == nil:
			s = n.String()
		default:
			return fmt.Errorf("%.40q is not a text, a number, or a list of these", x)
		}
		if s != "" {
			*t = append(*t, s)
		}
	}
	return nil
}

// first returns the first text.
func (t texts) first() string {
	if len(t) == 0 {
		return ""
	}
	return t[0]
}

// object decodes one question's JSON object.
func object(raw []byte, into any) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("not the expected JSON object: %w", err)
	}
	return nil
}

// need checks that fields are not empty: pairs of name and value.
func need(pairs ...string) error {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			return fmt.Errorf("%q is missing or empty", pairs[i])
		}
	}
	return nil
}
