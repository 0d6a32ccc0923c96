package operation

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

// unknownCode is what gRPC puts before an error that a plugin of pulumi returns. It says nothing.
const unknownCode = "rpc error: code = Unknown desc = "

// readable makes a text the message of the operation: one line, without secrets, of a bounded size.
func (o *operation) readable(text string) string {
	// Secrets are also looked for before the lines are joined: a secret of several short lines is not recognised afterwards.
	lines := o.redactor.String(o.withoutPaths(strings.ReplaceAll(plaintext.Strip(text), unknownCode, "")))
	return plaintext.Cut(o.redactor.String(oneLine(lines)), maxMessage)
}

// withoutPaths makes the paths in the text relative to the program: where the agent keeps the program is of no use to a user.
func (o *operation) withoutPaths(text string) string {
	if !filepath.IsAbs(o.dir) || filepath.Dir(o.dir) == o.dir {
		return text
	}
	return strings.ReplaceAll(text, strings.TrimSuffix(o.dir, "/")+"/", "")
}

// errorText returns why the CLI failed, in one text: what explains the failure and the policies that were violated, or else the end of what
// the program printed on its standard error, or else the last lines that the CLI printed.
func errorText(printed string, sum *summary) string {
	if found := append(explanations(printed, sum), sum.policyText()...); len(found) > 0 {
		return strings.Join(found, "\n")
	}
	if text := withoutNoise(sum.printedText()); text != "" {
		return text
	}
	return cli.LastLines(withoutNoise(printed), lastLines)
}

// awaitingText says which resources a provider did not wait for. The engine reports them as warnings, and no error.
func awaitingText(sum *summary) string {
	names := "resources"
	if len(sum.awaiting) > 0 {
		names = strings.Join(sum.awaiting, ", ")
	}
	return "not ready yet: " + names + ". The provider does not wait for what takes long; a later update takes up what depends on it"
}

// notRegistered matches what Pulumi YAML says about a resource whose own problem the engine reports.
var notRegistered = regexp.MustCompile(`\bresource [^\n]* failed to register$`)

// onlyAwaits reports whether a program failed because of resources that a provider did not wait for, and for no other reason: Pulumi YAML does not
// know such resources.
func onlyAwaits(sum *summary) bool {
	other := func(text string) bool { return !notRegistered.MatchString(text) }
	return len(sum.awaiting) > 0 && len(sum.errors) > 0 && !slices.ContainsFunc(sum.errors, other)
}

// explanations returns the errors that the engine reported, or else what the CLI itself printed as errors. A crash of pulumi comes before
// what it hides. Policies that were violated are not among them.
func explanations(printed string, sum *summary) []string {
	if crash := panicked.FindStringSubmatch(printed); crash != nil {
		return []string{"pulumi crashed: " + crash[1]}
	}
	if len(sum.errors) > 0 {
		found := slices.Clone(sum.errors)
		if text := cli.LastLines(withoutNoise(sum.printedText()), lastLines); text != "" && !slices.ContainsFunc(found, isMoreThanAnEnd) {
			// The engine knows only that the program ended. The program itself said why.
			found = append(found, text)
		}
		return found
	}
	if crash := goPanicked.FindStringSubmatch(printed); crash != nil {
		return []string{"pulumi crashed: " + crash[1]}
	}
	return printedErrors(withLastAttempt(printed))
}

// onlyEnded matches what the engine says about a program, or its compiler, that ended by itself.
var onlyEnded = regexp.MustCompile(`(?i)(?:^(?:an unhandled error occurred: )?program exited with non-zero exit code: |\bexit status )\d+$`)

// isMoreThanAnEnd reports whether the error says more than that the program, or its compiler, ended.
func isMoreThanAnEnd(text string) bool { return !onlyEnded.MatchString(text) }

// lastLines is how many lines are shown of an output that does not say which of them matter.
const lastLines = 5

var (
	// afterBlankLine matches a line that belongs to the error before it although a blank line is in between, as in errors of Vault.
	afterBlankLine = regexp.MustCompile(`^(?:URL: |Code: \d+\.|\s*\* )`)
	// ruler matches a line that only separates others.
	ruler = regexp.MustCompile(`^\s*(?:={4,}|-{4,}|\*{4,}|_{4,}|~{4,})\s*$`)
	// warned matches a warning of the CLI about itself, such as where it found a plugin, and the lines about another attempt of a download.
	warned = regexp.MustCompile(`^(?:warning: |error downloading provider: |Will retry in )`)
	// retry matches the announcement of another attempt with what follows in the same line, and retried matches why there is one.
	retry   = regexp.MustCompile(`(Will retry in [^ ]+ \[\d+/\d+\])(.)`)
	retried = regexp.MustCompile(`(?m)^(?:warning: )?error downloading provider: (.+)$`)
	// gaveUp matches the end of a download whose retries are over. It does not say why they failed.
	gaveUp = regexp.MustCompile(`failed all \d+ attempts`)
	// yamlProblem matches an error in a YAML program. The lines of the program come after it.
	yamlProblem = regexp.MustCompile(`(?m)^Error: (.+)\n\s*on (\S+ line \d+):(?:\s*\n\s*\d+:.*)*$`)
)

// printedErrors returns the lines of the errors in the output of the CLI. An error ends at a blank line, unless it only introduces what
// comes after that line.
func printedErrors(printed string) (found []string) {
	inError := false
	for line := range strings.Lines(printed) {
		// A secret of several lines is only recognised with its indentation.
		text := strings.TrimSuffix(line, "\n")
		message, isError := strings.CutPrefix(strings.TrimLeft(text, " \t"), "error: ")
		switch {
		case isError:
			text, inError = message, true
		case strings.HasPrefix(line, "warning: "):
			inError = false
		case strings.TrimSpace(line) == "":
			inError = inError && len(found) > 0 && strings.HasSuffix(found[len(found)-1], ":")
			continue
		case len(found) > 0 && afterBlankLine.MatchString(line):
			inError = true
		}
		repeats := func(earlier string) bool { return strings.HasSuffix(earlier, text) }
		if inError && len(found) < maxDiagnostics && text != "" && !ruler.MatchString(text) && !slices.ContainsFunc(found, repeats) {
			found = append(found, text)
		}
	}
	return found
}

// withoutNoise returns the text without warnings of the CLI about itself and without failed attempts of a download that was tried again, if
// that leaves anything. An error in a YAML program is one line, with its place.
func withoutNoise(text string) string {
	var kept strings.Builder
	for line := range strings.Lines(withLastAttempt(text)) {
		if !warned.MatchString(line) {
			kept.WriteString(line)
		}
	}
	if found := strings.TrimSpace(kept.String()); found != "" {
		return yamlProblem.ReplaceAllString(found, "$1; on $2")
	}
	return text
}

// withLastAttempt adds to the announcement that a download was given up why its last attempt failed. Pulumi prints no line break after
// each of the attempts.
func withLastAttempt(text string) string {
	text = retry.ReplaceAllString(text, "$1\n$2")
	attempts := retried.FindAllStringSubmatch(text, -1)
	if len(attempts) == 0 {
		return text
	}
	last := attempts[len(attempts)-1][1]
	return gaveUp.ReplaceAllStringFunc(text, func(failed string) string { return failed + ", the last one: " + last })
}

// panicked matches the line in which the CLI says why it crashed; a stack trace follows. goPanicked matches the line of a crash that the
// CLI could not catch.
var (
	panicked   = regexp.MustCompile(`(?m)^Panic: {12}(.*)$`)
	goPanicked = regexp.MustCompile(`(?m)^(?:panic|fatal error): (.*)(?:\n.*)*?\n\ngoroutine \d`)
)

// lineBreak matches the end of a line with the indentation of the next line.
var lineBreak = regexp.MustCompile(`([:;,.]?)[ \t]*\n\s*`)

// oneLine joins the lines of a text so that they still can be told apart.
func oneLine(text string) string {
	return lineBreak.ReplaceAllStringFunc(strings.TrimSpace(text), func(separator string) string {
		if mark := strings.TrimSpace(separator); mark != "" {
			return mark + " "
		}
		return "; "
	})
}
