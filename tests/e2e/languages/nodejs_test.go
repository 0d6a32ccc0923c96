package languages_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// canary is a secret that no status, event or log may have.
const canary = "canary-of-the-languages-61f0"

// withImage gives the program an image that is on the node.
func withImage(stack *pulumiv1.Stack) {
	stack.Spec.Config = map[string]apiextensionsv1.JSON{"image": value(system.Images.Busybox.Reference)}
}

func value(v any) apiextensionsv1.JSON {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return apiextensionsv1.JSON{Raw: raw}
}

// The program that the documents of the former operator begin with, as they deploy it, from a commit and a directory in git, and as the guide
// deploys it, from a GitRepository. Both use the ServiceAccount of the guide.
func TestNginxInTypeScript(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	const name, dir = "nginx-typescript", "kubernetes-ts-nginx"
	files := gitserver.Files{}
	for path, content := range project(t, name) {
		files[dir+"/"+path] = content
	}
	app, stack := provide(t, name, files)
	withImage(stack)
	account, written := firstProgram(t, name)
	_, err := system.Cluster.KubectlInput(ctx, account, "apply", "--filename=-")
	g.Expect(err).NotTo(HaveOccurred())
	stack.Spec.ServiceAccountName, stack.Spec.FluxSource.Dir = written.Spec.ServiceAccountName, written.Spec.FluxSource.Dir
	stack.Spec.DestroyOnFinalize = written.Spec.DestroyOnFinalize
	direct := stack.DeepCopy()
	direct.Name, direct.Spec.Stack = "direct", "direct"
	sha := pinInGit(t, app, direct)
	direct.Spec.RepoDir = dir
	g.Expect(system.Client.Create(ctx, stack)).To(Succeed())
	g.Expect(system.Client.Create(ctx, direct)).To(Succeed())
	for _, one := range []*pulumiv1.Stack{stack, direct} {
		ready := waitReady(t, &localsystem.App{Namespace: name, Name: one.Name, Repository: app.Repository})
		g.Expect(ready.Status.LastUpdate.ResourceChanges).To(HaveKeyWithValue("create", BeEquivalentTo(2)))
		deployment := &appsv1.Deployment{}
		g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: output(g, ready, "name")}, deployment)).To(Succeed())
		g.Expect(deployment.Status.ReadyReplicas).To(BeEquivalentTo(1))
		pod := &corev1.Pod{}
		g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: one.Name + "-workspace-0"}, pod)).To(Succeed())
		g.Expect(pod.Spec.ServiceAccountName).To(Equal("nginx"))
		if one == direct {
			g.Expect(ready.Status.LastUpdate.LastSuccessfulCommit).To(Equal(sha))
		}
	}

	g.Expect(system.Client.Delete(ctx, stack)).To(Succeed())
	g.Expect(system.Client.Delete(ctx, direct)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(client.IgnoreNotFound(system.Client.Get(ctx, app.Key(), &pulumiv1.Stack{}))).To(Succeed())
		left := &pulumiv1.StackList{}
		g.Expect(system.Client.List(ctx, left, client.InNamespace(name))).To(Succeed())
		g.Expect(left.Items).To(BeEmpty())
		deployments := &appsv1.DeploymentList{}
		g.Expect(system.Client.List(ctx, deployments, client.InNamespace(name))).To(Succeed())
		g.Expect(deployments.Items).To(BeEmpty())
	}).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
}

// firstProgram returns the ServiceAccount of the guide's first program with its RoleBinding, as a manifest for the namespace, and the Stack.
func firstProgram(t *testing.T, namespace string) (account string, stack *pulumiv1.Stack) {
	t.Helper()
	g := NewWithT(t)
	page, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "docs", "guides", "languages.md"))
	g.Expect(err).NotTo(HaveOccurred())
	_, block, found := strings.Cut(string(page), "```yaml\n")
	g.Expect(found).To(BeTrue())
	block, _, _ = strings.Cut(block, "```")
	account, rest, found := strings.Cut(strings.ReplaceAll(block, "namespace: default", "namespace: "+namespace), "---\napiVersion: source.toolkit.fluxcd.io/")
	g.Expect(found).To(BeTrue())
	stack = &pulumiv1.Stack{}
	g.Expect(yaml.UnmarshalStrict([]byte(rest[strings.Index(rest, "apiVersion: pulumi.com/"):]), stack)).To(Succeed())
	return account, stack
}

// output returns an output of the Stack that is a string.
func output(g Gomega, stack *pulumiv1.Stack, name string) (text string) {
	g.Expect(stack.Status.Outputs).To(HaveKey(name))
	g.Expect(json.Unmarshal(stack.Status.Outputs[name].Raw, &text)).To(Succeed())
	return text
}

func digestOf(text string) string {
	hash := sha256.Sum256([]byte(text))
	return hex.EncodeToString(hash[:])
}

// A program with components, resources of its own, secrets, and structured configuration is installed once, and once more when its lock file
// changes.
func TestProgramIsInstalledOnceForItsLockFile(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	const name = "features"
	app, stack := provide(t, name, counted(project(t, name)))
	g.Expect(system.Client.Create(ctx, &corev1.Secret{
		Namespace: name, Name: "app", StringData: map[string]string{"password": canary},
	})).To(Succeed())
	stack.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"password": localsystem.SecretRef("app", "password")}
	stack.Spec.Config = map[string]apiextensionsv1.JSON{
		"text": value("first"), "settings": value(map[string]any{"zones": []string{"a", "b"}, "size": 3}),
	}
	g.Expect(system.Client.Create(ctx, stack)).To(Succeed())
	ready := waitReady(t, app)
	g.Expect(ready.Status.LastUpdate.ResourceChanges).To(HaveKeyWithValue("create", BeEquivalentTo(4)))
	g.Expect(output(g, ready, "local")).To(Equal(digestOf("first")))
	g.Expect(ready.Status.Outputs["settings"].Raw).To(MatchJSON(`{"zones": ["a", "b"], "size": 3}`))
	g.Expect(output(g, ready, "both")).To(Equal(digestOf("first") + " " + digestOf(canary)))
	g.Expect(output(g, ready, "echo")).To(Equal("[secret]"))
	expectNoCanary(t, name)

	g.Expect(installations(t, name)).To(Equal(1))
	index := project(t, name)["index.ts"]
	stack = commit(t, app, gitserver.Files{"index.ts": index + "\nexport const added = true;\n"})
	g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded), stack.Status.LastUpdate.Message)
	g.Expect(stack.Status.Outputs).To(HaveKey("added"))
	g.Expect(installations(t, name)).To(Equal(1), "a commit that changes only the program does not install it again")

	lock := project(t, name)["package-lock.json"]
	stack = commit(t, app, gitserver.Files{"package-lock.json": lock + "\n"})
	g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded), stack.Status.LastUpdate.Message)
	g.Expect(installations(t, name)).To(Equal(2))
	stack = commit(t, app, gitserver.Files{"index.ts": index})
	g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded), stack.Status.LastUpdate.Message)
	g.Expect(stack.Status.Outputs).NotTo(HaveKey("added"))
	g.Expect(installations(t, name)).To(Equal(2), "nor does the next one after a change of the lock file")

	// A dynamic provider needs what is installed for the program to look for drift, and to be destroyed, also in a new pod.
	g.Expect(stack.Status.ProjectInfo.NeedsProgram).To(BeTrue())
	replacePod := func() {
		_, err := system.Cluster.Kubectl(ctx, "delete", "pod", "--namespace="+name, name+"-workspace-0")
		g.Expect(err).NotTo(HaveOccurred())
	}
	replacePod()
	earlier := stack.DeepCopy()
	stack.Annotations = map[string]string{pulumiv1.DriftCheckAnnotation: "now"}
	stack.Spec.DestroyOnFinalize, stack.Spec.Drift = true, &pulumiv1.DriftSpec{Interval: metav1.Duration{Duration: time.Hour}}
	g.Expect(system.Client.Patch(ctx, stack, client.MergeFrom(earlier))).To(Succeed())
	stack = await(t, app.Key(), func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.Drift).NotTo(BeNil())
		g.Expect(stack.Status.Drift.LastHandledCheckAt).To(Equal("now"))
	})
	g.Expect(conditions.IsFalse(stack, pulumiv1.DriftedCondition)).To(BeTrue(), conditions.GetMessage(stack, pulumiv1.DriftedCondition))
	replacePod()
	g.Expect(system.Client.Delete(ctx, stack)).To(Succeed())
	g.Eventually(func() bool { return apierrors.IsNotFound(system.Client.Get(ctx, app.Key(), stack)) }, patience, time.Second).Should(BeTrue())
}

// counted makes the package manager note each installation of the project: it runs this script at the end of each.
func counted(files gitserver.Files) gitserver.Files {
	const main = `"main": "index.ts",`
	files["package.json"] = strings.Replace(files["package.json"], main, main+` "scripts": {"prepare": "echo installed >>/tmp/installations"},`, 1)
	return files
}

// installations returns how often the project, which is counted, was installed in the pod.
func installations(t *testing.T, namespace string) int {
	t.Helper()
	out, err := system.Cluster.Kubectl(t.Context(), "exec", "--namespace="+namespace, namespace+"-workspace-0", "--container=pulumi", "--",
		"sh", "-c", "cat /tmp/installations")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return strings.Count(out, "installed\n")
}

// What a lock file names is installed from a mirror that has it and that asks nobody.
func TestProgramWithALockFileIsInstalledFromTheMirrorAlone(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	const name = "mirror-alone"
	files := project(t, "features", gitserver.Files{"index.ts": "export const said = \"hello\";\n"})
	app, stack := provide(t, name, files)
	offline := stack.DeepCopy()
	offline.Name, offline.Spec.Stack = "offline", "offline"
	offline.Spec.EnvRefs["npm_config_registry"] = literal(system.Packages.OfflineNPM)
	offline.Spec.EnvRefs["npm_config_update_notifier"] = literal("false") // npm would look for a newer version of itself
	g.Expect(system.Client.Create(ctx, stack)).To(Succeed())
	waitReady(t, app) // the mirror has all packages now
	g.Expect(system.Client.Create(ctx, offline)).To(Succeed())
	ready := waitReady(t, &localsystem.App{Namespace: name, Name: offline.Name, Repository: app.Repository})
	g.Expect(output(g, ready, "said")).To(Equal("hello"))

	var lock struct{ Packages map[string]any }
	g.Expect(json.Unmarshal([]byte(files["package-lock.json"]), &lock)).To(Succeed())
	archives, missing := system.Packages.Offline()
	g.Expect(missing).To(BeEmpty())
	g.Expect(archives).To(BeNumerically(">=", len(lock.Packages)-1), "all packages of the lock file but the project itself")
}

// expectNoCanary searches everything that others can read of the namespace for the secret.
func expectNoCanary(t *testing.T, namespace string) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	for _, args := range [][]string{
		{"get", "stacks.pulumi.com,workspaces.auto.pulumi.com,updates.auto.pulumi.com,events,events.events.k8s.io,configmaps,pods", "--output=yaml"},
		{"logs", namespace + "-workspace-0", "--all-containers"},
	} {
		out, err := system.Cluster.Kubectl(ctx, append(args, "--namespace="+namespace)...)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).NotTo(ContainSubstring(canary))
	}
	log, err := system.ControllerLog(ctx, -1)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(log).NotTo(ContainSubstring(canary))
}

// A Stack reads what another one has as its output, with a StackReference.
func TestStackReferenceInTypeScript(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	const name = "stack-reference"
	files := project(t, "features", gitserver.Files{"index.ts": `import * as pulumi from "@pulumi/pulumi";
const config = new pulumi.Config();
const other = config.get("other");
export const given = other ? new pulumi.StackReference(other).requireOutput("given") : config.require("value");
`})
	app, giver := provide(t, name, files)
	taker := giver.DeepCopy()
	giver.Spec.Config = map[string]apiextensionsv1.JSON{"value": value("forty-two")}
	taker.Name, taker.Spec.Stack = "taker", "taker"
	taker.Spec.Config = map[string]apiextensionsv1.JSON{"other": value("organization/stack-reference/dev")}
	taker.Spec.DependsOn = []pulumiv1.DependencyReference{{Name: giver.Name}}
	g.Expect(system.Client.Create(ctx, taker)).To(Succeed())
	g.Expect(system.Client.Create(ctx, giver)).To(Succeed())
	ready := waitReady(t, &localsystem.App{Namespace: name, Name: "taker", Repository: app.Repository})
	g.Expect(output(g, ready, "given")).To(Equal("forty-two"))
}

// What is wrong with a program is said with the place in it, in the words of its language, and on one line.
func TestProgramsOfNodeThatFail(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		files   gitserver.Files
		change  func(*pulumiv1.Stack)
		message string
	}{
		"type-error": {
			files:   gitserver.Files{"index.ts": "const port: number = \"eighty\";\nexport { port };\n"},
			message: `index\.ts[(:]1.*error TS2322: Type 'string' is not assignable to type 'number'`,
		},
		"syntax-error": {
			files:   gitserver.Files{"index.ts": "export const port = ;\n"},
			message: `index\.ts[(:]1.*error TS1109: Expression expected`,
		},
		"throws": {
			files:   gitserver.Files{"index.ts": "throw new Error(\"no region is set\");\n"},
			message: `no region is set`,
		},
		"failing-apply": {
			files: gitserver.Files{"index.ts": `import * as pulumi from "@pulumi/pulumi";
export const length = pulumi.output("a").apply(text => { throw new Error("cannot count " + text); });
`},
			message: `cannot count a`,
		},
		"missing-config": {
			files: gitserver.Files{"index.ts": `import * as pulumi from "@pulumi/pulumi";
export const region = new pulumi.Config().require("region");
`},
			message: `Missing required configuration variable 'missing-config:region'`,
		},
		"not-in-package-json": {
			files:   gitserver.Files{"index.ts": "import { chunk } from \"lodash\";\nexport const chunks = chunk([1, 2], 1);\n"},
			message: `Cannot find module 'lodash'`,
		},
		"no-such-package": {
			files: gitserver.Files{"package.json": `{"main": "index.ts", "dependencies": {"@pulumi/no-such-package": "1.0.0"}}`,
				"package-lock.json": `{}`},
			message: `npm install failed: .*'?@pulumi/no-such-package@1\.0\.0'? is not in this registry`,
		},
		"never-ends": {
			files: gitserver.Files{"index.ts": "setInterval(() => undefined, 1000);\nexport const port = new Promise(() => undefined);\n"},
			change: func(stack *pulumiv1.Stack) {
				stack.Spec.Timeout = &metav1.Duration{Duration: 3 * time.Minute}
			},
			message: `took longer than its timeout`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			app, stack := provide(t, name, project(t, "features", test.files))
			stack.Spec.RetryInterval = &metav1.Duration{Duration: time.Hour}
			if test.change != nil {
				test.change(stack)
			}
			g.Expect(system.Client.Create(t.Context(), stack)).To(Succeed())
			message := awaitFailure(t, app.Key())
			t.Log(message)
			g.Expect(message).To(MatchRegexp(test.message))
			g.Expect(message).NotTo(ContainSubstring("\n"))
			g.Expect(len(message)).To(BeNumerically("<", 1000))
		})
	}
}

// A project is found, installed and run wherever its package is in the repository.
func TestPlacesOfPackages(t *testing.T) {
	t.Parallel()
	const program = "import { word } from \"./words\";\nexport const said = word;\n"
	lock := func() string { return project(t, "features")["package-lock.json"] }
	workspaces := `{"name": "root", "private": true, "workspaces": ["packages/*"]}`
	words := gitserver.Files{"packages/words/package.json": `{"name": "words", "version": "1.0.0", "main": "index.js"}`,
		"packages/words/index.js": "exports.word = \"hello\";\n"}
	member := func() gitserver.Files {
		all := gitserver.Files{"package.json": workspaces}
		for path, content := range project(t, "features") {
			if path != "package-lock.json" {
				all["packages/app/"+path] = content
			}
		}
		all["packages/app/index.ts"] = "const { word } = require(\"words\");\nexport const said = word;\n"
		return all
	}
	for name, test := range map[string]struct {
		files  gitserver.Files
		change func(*pulumiv1.Stack)
		// newer is set if the language host of the tests is too old for it.
		newer bool
	}{
		"main-in-a-subdirectory": {files: project(t, "features", gitserver.Files{
			"Pulumi.yaml": "name: features\nruntime: nodejs\nmain: source/\n", "index.ts": "", "package.json": "{}", "package-lock.json": "{}",
			"source/package.json": project(t, "features")["package.json"], "source/package-lock.json": lock(), "source/tsconfig.json": project(t, "features")["tsconfig.json"],
			"source/index.ts": program, "source/words.ts": "export const word = \"hello\";\n",
		})},
		"javascript": {files: project(t, "features", gitserver.Files{"index.ts": "", "index.js": "exports.said = \"hello\";\n",
			"package.json": `{"main": "index.js", "dependencies": {"@pulumi/pulumi": "3.276.0"}}`, "package-lock.json": "{}", "tsconfig.json": "{}"})},
		"yarn": {files: project(t, "features", gitserver.Files{"index.ts": "export const said = \"hello\";\n"}), change: func(stack *pulumiv1.Stack) {
			stack.Spec.EnvRefs["PULUMI_PREFER_YARN"] = literal("true")
		}},
		"npm-workspace":  {newer: true, files: merged(member(), words), change: inDirectory("packages/app")},
		"yarn-workspace": {newer: true, files: withManager(merged(member(), words), "yarn"), change: inDirectory("packages/app")},
		"pnpm-workspace": {
			newer: true,
			// Since pnpm 11, a package whose scripts may not run is an error by default.
			files: withManager(declaringWords(merged(member(), words, gitserver.Files{
				"pnpm-workspace.yaml": "packages: ['packages/*']\nstrictDepBuilds: false\n",
			})), "pnpm"),
			change: inDirectory("packages/app"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			if test.newer && !system.Images.Languages.IsForeign {
				t.Skip("the language host of the image does not look for packages above the project")
			}
			app, stack := provide(t, name, test.files)
			if test.change != nil {
				test.change(stack)
			}
			g.Expect(system.Client.Create(t.Context(), stack)).To(Succeed())
			ready := waitReady(t, app)
			g.Expect(output(g, ready, "said")).To(Equal("hello"), "%s", conditions.GetMessage(ready, "Ready"))
		})
	}
}

// withManager makes a package manager install the project in packages/app.
func withManager(files gitserver.Files, manager string) gitserver.Files {
	const path = "packages/app/Pulumi.yaml"
	files[path] = strings.Replace(files[path], "runtime: nodejs\n", "runtime:\n  name: nodejs\n  options: {packagemanager: "+manager+"}\n", 1)
	return files
}

// declaringWords makes the project in packages/app depend on the package words. pnpm, unlike npm and yarn, gives it only to those that do.
func declaringWords(files gitserver.Files) gitserver.Files {
	const path, dependencies = "packages/app/package.json", `"dependencies": {`
	files[path] = strings.Replace(files[path], dependencies, dependencies+` "words": "workspace:*",`, 1)
	return files
}

func inDirectory(dir string) func(*pulumiv1.Stack) {
	return func(stack *pulumiv1.Stack) { stack.Spec.FluxSource.Dir = dir }
}

func merged(all ...gitserver.Files) gitserver.Files {
	result := gitserver.Files{}
	for _, files := range all {
		for path, content := range files {
			if _, twice := result[path]; twice {
				panic(fmt.Sprintf("%s is there twice", path))
			}
			result[path] = content
		}
	}
	return result
}
