package operation

import (
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/agent/redact"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

// canary is a secret that none of the seeds cuts in two.
const canary = "canary-s3cr3t-value"

// readableText fails unless people may see the text that was made from the source: it is bounded and readable, and has neither the secret
// nor a part of it that was left by a cut.
func readableText(t *testing.T, source, text string, size int) {
	t.Helper()
	unreadable := func(r rune) bool { return r != '\n' && r != '\t' && unicode.IsControl(r) }
	if len(text) > size || !utf8.ValidString(text) || strings.ContainsFunc(text, unreadable) {
		t.Fatalf("%d of at most %d bytes: %q", len(text), size, text)
	}
	part := canary[:12]
	cut := strings.HasSuffix(text, part+"…") && strings.Count(source, part) == strings.Count(source, canary)
	if strings.Contains(text, canary) || cut {
		t.Fatalf("the secret is in %q", text)
	}
}

// FuzzEvents checks that what is kept of the engine's events is bounded and holds no secret, whatever the engine reports.
func FuzzEvents(f *testing.F) {
	f.Add(`{"resourcePreEvent":{"metadata":{"op":"create","urn":"urn:pulumi:dev::app::aws:s3/bucket:Bucket::`+canary+`","type":"aws:s3/bucket:Bucket"}}}`, 1)
	f.Add(`{"resOutputsEvent":{"metadata":{"op":"update","urn":"urn:pulumi:dev::app::a$b:c:D::x","type":"b:c:D","diffs":["a","`+strings.Repeat("x", 280)+canary+`"]}}}`, 9)
	f.Add(`{"diagnosticEvent":{"severity":"error","urn":"`+canary+`","message":"\u001b[31m`+strings.Repeat("x", maxDiagnosticSize-15)+canary+`"}}`, 20)
	f.Add(`{"diagnosticEvent":{"severity":"warning","urn":"urn:pulumi:dev::app::a:b:C::x","message":"`+strings.Repeat("x", maxDiagnosticSize-15)+canary+`"}}`, 20)
	f.Add(`{"diagnosticEvent":{"severity":"info#err","message":"`+strings.Repeat("line\\n", 600)+canary+`"}}`, 3)
	f.Add(`{"policyEvent":{"enforcementLevel":"mandatory","policyName":"p\u009b","message":"`+strings.Repeat("x", maxDiagnosticSize-30)+canary+`"}}`, 2)
	f.Add(`{"summaryEvent":{"resourceChanges":{"create":1,"`+strings.Repeat("k", 300)+`":-5}}}`, 1)
	f.Add(`{"resOutputsEvent":{"metadata":{"op":"create","type":"pulumi:pulumi:Stack","new":{"outputs":{"a":{"b":[1e400]},"c":"x"}}}}}`, 1)
	f.Add(`{"resOutputsEvent":{}, "resourcePreEvent":null, "diagnosticEvent":{"urn":"::::::"}}`, 1)
	redactor := redact.New(canary)
	f.Fuzz(func(t *testing.T, event string, times int) {
		o := &operation{redactor: redactor, dir: "/program"}
		sum := &summary{redactor: redactor}
		for range min(max(times, 1), 40) {
			sum.add([]byte(event))
		}
		if len(sum.errors) > maxDiagnostics || len(sum.warnings) > agentpb.MaxWarnings || len(sum.changed) > maxChanged || len(sum.changes) > maxKinds || len(sum.printedText()) > 3*maxPrinted {
			t.Fatalf("too much is kept: %+v", sum)
		}
		for kind, count := range sum.changes {
			if len(kind) > maxKindSize || count < 0 {
				t.Fatalf("%d of %q", count, kind)
			}
		}
		for _, text := range slices.Concat(sum.errors, sum.warnings, sum.changed) {
			if len(text) > max(maxDiagnosticSize, maxChangedSize) || strings.Contains(text, canary) {
				t.Fatalf("%q", text)
			}
			readableText(t, event, o.readable(text), maxMessage)
		}
		readableText(t, event, o.readable(progressText(sum.changes, sum.current)), maxMessage)
		readableText(t, event, o.readable(classify(cli.Result{Code: 1}, sum).message), maxMessage)
	})
}

// FuzzClassify checks that whatever the CLI prints becomes a reason that is known, and a message that people may see.
func FuzzClassify(f *testing.F) {
	for _, printed := range []string{
		"error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end or delete the lock file with `pulumi cancel`.\n" +
			"  file:///a: created by u@h (pid 1) at 2026-11-21T02:26:40Z",
		"warning: old\nerror: could not load plugin\n  details\n\nURL: PUT https://vault\nCode: 403. Errors:\n\n\t* permission denied\n",
		"\x1b[31merror: \x1b[0mno stack named 'dev' found\x07",
		"The Pulumi CLI encountered a fatal error. This is a bug!\nWe would appreciate a report\nPanic: runtime error: index out of range\ngoroutine 1 [running]:",
		"panic: boom " + canary + "\n\ngoroutine 1 [running]:\nmain.main()",
		"error: decrypting secret value: canary-\x1b[1ms3cr3t-value\u009b", strings.Repeat("error: x\n", 5000) + canary, "error: \xff\xfe", "error: ",
	} {
		for _, code := range []int{-1, 1, 3, 6, 7} {
			f.Add(code, printed, false)
		}
	}
	f.Fuzz(func(t *testing.T, code int, printed string, started bool) {
		failed := classify(cli.Result{Code: code, Stderr: printed}, &summary{started: started})
		if _, known := agentpb.FailureReason_name[int32(failed.reason)]; !known || failed.reason == agentpb.FailureReason_FAILURE_REASON_UNSPECIFIED {
			t.Fatalf("reason %d", failed.reason)
		}
		for _, holder := range failed.holders {
			if len(holder.GetUser()) > 128 || len(holder.GetHost()) > 253 || holder.GetPid() < 0 || !utf8.ValidString(holder.GetUser()+holder.GetHost()) {
				t.Fatalf("holder %v", holder)
			}
		}
		o := &operation{redactor: redact.New(canary), dir: "/program"}
		message := o.readable(failed.message)
		readableText(t, printed, message, maxMessage)
		if strings.Contains(message, "\n") {
			t.Fatalf("%q has more than one line", message)
		}
	})
}

// FuzzProject checks that a project file has a name and a runtime, or a brief error.
func FuzzProject(f *testing.F) {
	f.Add("name: app\nruntime: yaml\nmain: src\nbackend: {url: 'file://x'}\nstackConfigDir: conf\n")
	f.Add("name: app\nruntime: {name: nodejs, options: {typescript: true}}\npackages: &p {a: 1.0.0}\nplugins: *p\n")
	f.Add("name: app\nruntime: yaml\na: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\npackages: &d {d: *c, e: *c}\n")
	f.Add("name: app\nruntime: yaml\npackages: &a {x: *a}\n")
	f.Add("\xef\xbb\xbf{\"name\": \"app\", \"runtime\": \"go\"}")
	f.Add("? [a, b]\n: c\nname: !!binary x\nruntime: !!python/object x")
	f.Fuzz(func(t *testing.T, source string) {
		p, err := parseProject("Pulumi.yaml", []byte(source))
		if err != nil {
			o := &operation{redactor: redact.New(canary), dir: "/program"}
			readableText(t, source, o.readable(err.Error()), maxMessage)
			return
		}
		if p.Name == "" || p.runtime == "" || !p.hasProgram() {
			t.Fatalf("%+v", p)
		}
		stub, err := p.stub()
		if err != nil {
			return
		}
		if again, err := parseProject("Pulumi.yaml", stub); err != nil || again.Name != p.Name || again.runtime != p.runtime {
			t.Fatalf("%q became the stub %q: %v", source, stub, err)
		}
	})
}

// FuzzReadable checks that a secret is not seen in a message, however it is printed.
func FuzzReadable(f *testing.F) {
	f.Add("first\n  second", "line 1\nline 2", "\x1b[31m")
	f.Add("a", "x-y\nz-w\nv-u", "\r")
	f.Add("", "secret with spaces  and\ttabs", "\u009b")
	f.Add(strings.Repeat("x", maxMessage-10), "0123456789abcdef", "")
	f.Fuzz(func(t *testing.T, before, secret, escape string) {
		// Control characters are removed from a message before secrets are looked for.
		if len(strings.TrimSpace(secret)) < 8 || !utf8.ValidString(secret) || plaintext.Strip(secret) != secret || strings.Contains(before, secret) {
			return
		}
		if strings.Contains(redact.Mask, strings.TrimSpace(secret)) || strings.Contains("…", secret) {
			return
		}
		o := &operation{redactor: redact.New(secret), dir: "/program"}
		message := o.readable(plaintext.Strip(before) + "\n" + secret + "\n" + escape)
		if len(message) > maxMessage || !utf8.ValidString(message) || strings.Contains(message, "\n") {
			t.Fatalf("%q", message)
		}
		if joined := oneLine(secret); len(joined) >= 8 && strings.Contains(message, joined) && !strings.Contains(oneLine(plaintext.Strip(before+escape)), joined) {
			t.Fatalf("%q shows %q", message, secret)
		}
	})
}
