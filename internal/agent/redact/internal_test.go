package redact

import (
	"bytes"
	"fmt"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"
)

func TestTextIsWithheldWhenThereAreTooManyValues(t *testing.T) {
	g := NewWithT(t)
	redactor := &Redactor{known: adder{limit: 1000}}
	redactor.Add("hunter22")
	var early bytes.Buffer
	writer := redactor.Writer(&early)
	g.Expect(writer.Write([]byte("before hunter22, and hunt"))).Error().NotTo(HaveOccurred())

	for i := range 200 {
		redactor.Add(fmt.Sprintf("password%d", i))
	}
	g.Expect(redactor.known).To(Equal(adder{}), "what is not looked for takes no memory")
	g.Expect(redactor.String("ordinary text")).To(Equal(Withheld))
	g.Expect(redactor.String(redactor.String("hunter22"))).To(Equal(Withheld))
	g.Expect(redactor.String("")).To(BeEmpty())

	redactor.Add("another value")
	g.Expect(redactor.String("another value")).To(Equal(Withheld))

	for range 3 {
		g.Expect(writer.Write([]byte("er22 another value\n"))).Error().NotTo(HaveOccurred())
	}
	g.Expect(writer.Close()).To(Succeed())
	g.Expect(early.String()).To(Equal("before [secret], and " + Withheld + "\n"))

	var silent bytes.Buffer
	g.Expect(redactor.Writer(&silent).Close()).To(Succeed())
	g.Expect(silent.String()).To(BeEmpty(), "there was no text")
}

func TestSetHasWhatWasAddedAndNothingElse(t *testing.T) {
	g := NewWithT(t)
	known := &set{}
	g.Expect(known.has(0)).To(BeFalse())
	const count = 10_000
	number := func(i int) hash { return hash(1).of(strconv.Itoa(i)) }
	for i := range count {
		g.Expect(known.add(number(i))).To(BeTrue())
		g.Expect(known.add(number(i))).To(BeFalse())
	}
	for i := range count {
		g.Expect(known.has(number(i))).To(BeTrue())
		g.Expect(known.has(number(i + count))).To(BeFalse())
	}
	g.Expect(known.used).To(Equal(count))
	g.Expect(known.slots).To(HaveLen(16 << 10))
}
