package redact_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/redact"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// hostile returns values of about size bytes together, each in a way that is costly for some search.
var hostile = map[string]func(size int) []string{
	"one long value":    func(size int) []string { return []string{random(size)} },
	"one repeated byte": func(size int) []string { return []string{strings.Repeat("a", size)} },
	"nothing but escapes": func(size int) []string {
		value := []byte(random(size))
		for i := range value {
			value[i] %= ' '
		}
		return []string{"x" + string(value) + "x"}
	},
	"white space first":             func(size int) []string { return []string{"\t" + random(size)} },
	"lines":                         func(size int) []string { return []string{strings.Join(parts(random(size), 9), "\n")} },
	"a common prefix":               func(size int) []string { return numbered(size, strings.Repeat("p", 1000)) },
	"short ones of a common prefix": func(size int) []string { return numbered(size, "password") },
	"beginnings of each other": func(size int) (values []string) {
		long := random(size)
		for length := 9; size > 0; length += 9 {
			values, size = append(values, long[:length]), size-length
		}
		return values
	},
	"parts of each other": func(size int) []string { return append(parts(random(size/2), 100), random(size/2)) },
	"the same one":        func(size int) []string { return slices.Repeat([]string{"pass\"word<1"}, size/11) },
	"values of a dump":    func(size int) []string { return parts(random(size), 4<<10) },
}

// random returns printable text that is the same each time.
func random(size int) string {
	source, text := rand.New(rand.NewPCG(1, 2)), make([]byte, size)
	for i := range text {
		text[i] = byte(' ' + 1 + source.IntN('~'-' '))
	}
	return string(text)
}

// parts cuts the text.
func parts(text string, length int) (all []string) {
	for chunk := range slices.Chunk([]byte(text), length) {
		all = append(all, string(chunk))
	}
	return all
}

// numbered returns different values that begin with the prefix.
func numbered(size int, prefix string) (values []string) {
	for i := range size / (len(prefix) + 6) {
		values = append(values, fmt.Sprintf("%s%06d", prefix, i))
	}
	return values
}

// memory returns how many bytes the call allocates, and how many of them are still used after it.
func memory(do func() any) (allocated, kept int) {
	var before, after, collected runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	result := do()
	runtime.ReadMemStats(&after)
	runtime.GC()
	runtime.ReadMemStats(&collected)
	runtime.KeepAlive(result)
	return int(after.TotalAlloc - before.TotalAlloc), int(collected.HeapAlloc) - int(before.HeapAlloc)
}

// fixed is what a Redactor takes that knows one value, in bytes.
const fixed = 640 << 10

func TestMemoryIsASmallMultipleOfTheValues(t *testing.T) {
	suite.WithoutRaceDetector(t)
	for name, values := range hostile {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var allocated, kept [2]int
			for i, size := range []int{128 << 10, 256 << 10} {
				secrets := values(size)
				allocated[i], kept[i] = memory(func() any { return redact.New(secrets...) })
				runtime.KeepAlive(secrets)
				t.Logf("%d KiB: allocates %.1f bytes for each byte, keeps %.1f", size>>10, float64(allocated[i])/float64(size), float64(kept[i])/float64(size))
				g.Expect(kept[i]).To(BeNumerically("<", 12*size+fixed))
				g.Expect(allocated[i]).To(BeNumerically("<", 50*size+fixed))
			}
			g.Expect(allocated[1]).To(BeNumerically("<", 2.5*float64(allocated[0])+fixed), "twice the values take twice the work")
		})
	}
}

func TestBriefHidesValuesAtABoundedCost(t *testing.T) {
	suite.WithoutRaceDetector(t)
	g := NewWithT(t)
	g.Expect(redact.Brief("the request has hunter22", slices.Values([]string{"x", "hunter22"}))).To(Equal("the request has [secret]"))
	g.Expect(redact.Brief("the request has some values", slices.Values(append(numbered(16<<10, "password"), random(64<<10))))).To(
		Equal("the request has some values"))
	g.Expect(redact.Brief("the request is ordinary", slices.Values([]string{}))).To(Equal("the request is ordinary"))
	for name, values := range hostile {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			secrets := values(1 << 20)
			read := 0
			var text string
			allocated, _ := memory(func() any {
				text = redact.Brief("the request has "+secrets[0][:3], func(yield func(string) bool) {
					for range 8 {
						for _, secret := range secrets {
							if read += len(secret); !yield(secret) {
								return
							}
						}
					}
				})
				return nil
			})
			t.Logf("allocates %d KiB, reads %d KiB", allocated>>10, read>>10)
			g.Expect(allocated).To(BeNumerically("<", 5<<20))
			g.Expect(text).To(Equal(redact.Withheld))
		})
	}
}

func TestPiecesOfALongValueAreHidden(t *testing.T) {
	g := NewWithT(t)
	long := random(150)
	redactor := redact.New(long)
	g.Expect(redactor.String("a " + long + " b")).To(Equal("a [secret] b"))
	g.Expect(redactor.String("a " + long[:64] + " b")).To(Equal("a [secret] b"))
	g.Expect(redactor.String("cut " + long[:140])).To(Equal("cut [secret]" + long[128:140]))
	g.Expect(redactor.String("cut " + long[10:])).To(Equal("cut " + long[10:64] + "[secret]"))
	g.Expect(redactor.String("a " + long[:63] + " b")).To(Equal("a " + long[:63] + " b"))
}

// TestWriterHoldsBackNoMoreThanAPiece writes the beginning of a value that is much longer than a piece.
func TestWriterHoldsBackNoMoreThanAPiece(t *testing.T) {
	g := NewWithT(t)
	long := random(16 << 10)
	redactor := redact.New(long)
	for _, size := range []int{63, 64, 100, 10_000} {
		var out bytes.Buffer
		writer := redactor.Writer(&out)
		g.Expect(writer.Write([]byte("a " + long[:size]))).Error().NotTo(HaveOccurred())
		before := out.Len()
		g.Expect(writer.Write([]byte(strings.Repeat(" ", 64)))).Error().NotTo(HaveOccurred())
		g.Expect(out.String()).To(HavePrefix(strings.TrimSuffix("a "+redact.Mask, strings.Repeat(redact.Mask, 1-min(1, size/64))) + long[size/64*64:size] + " "))
		g.Expect(before).To(BeNumerically("<=", 2+len(redact.Mask)))
	}
}

func TestLargestSecretsOfAnOperationAreHidden(t *testing.T) {
	suite.Long(t, "takes as much memory and time as any operation can need")
	g := NewWithT(t)
	values := parts(random(8<<20), 1<<20)
	var redactor *redact.Redactor
	allocated, kept := memory(func() any {
		redactor = redact.New(values...)
		return nil
	})
	t.Logf("allocates %d MiB, keeps %d MiB", allocated>>20, kept>>20)
	g.Expect(kept).To(BeNumerically("<", 80<<20))
	g.Expect(redactor.String("a " + values[7] + " b")).To(Equal("a [secret] b"))
	redactor.Add(values...)
	redactor.Add(numbered(24<<20, "password")...)
	g.Expect(redactor.String("a")).To(Equal(redact.Withheld))
}
