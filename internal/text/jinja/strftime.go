package jinja

import (
	"fmt"
	"strings"
	"time"
)

// layouts maps directives of strftime to layouts of time.Format.
var layouts = map[byte]string{
	'e': "_2", 'B': "January", 'b': "Jan", 'h': "Jan", 'A': "Monday", 'a': "Mon", 'p': "PM", 'F': "2006-01-02",
	'T': "15:04:05", 'X': "15:04:05", 'R': "15:04", 'D': "01/02/06", 'x': "01/02/06", 'c': "Mon Jan _2 15:04:05 2006",
	'Z': "", 'z': "", // datetime.now() is naive: no zone
	'n': "\n", 't': "\t", '%': "%",
}

// strftime is Python's datetime.strftime in the C locale. Unknown directives are kept, as in glibc.
func strftime(t time.Time, format string) string {
	numbers := map[byte]struct{ n, width int }{
		'Y': {t.Year(), 1}, 'y': {t.Year() % 100, 2}, 'm': {int(t.Month()), 2}, 'd': {t.Day(), 2}, 'j': {t.YearDay(), 3},
		'H': {t.Hour(), 2}, 'I': {(t.Hour()+11)%12 + 1, 2}, 'M': {t.Minute(), 2}, 'S': {t.Second(), 2}, 'f': {t.Nanosecond() / 1000, 6},
		'u': {(int(t.Weekday())+6)%7 + 1, 1}, 'w': {int(t.Weekday()), 1},
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		from, pad := i, true
		i++
		if format[i] == '-' && i+1 < len(format) {
			i, pad = i+1, false
		}
		c := format[i]
		layout, known := layouts[c]
		switch number, ok := numbers[c]; {
		case ok && (pad || c == 'f'):
			fmt.Fprintf(&b, "%0*d", number.width, number.n)
		case ok:
			fmt.Fprintf(&b, "%d", number.n)
		case known:
			b.WriteString(t.Format(layout))
		default:
			b.WriteString(format[from : i+1])
		}
	}
	return b.String()
}
