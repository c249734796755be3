/* Trains a softmax layer on the pixels of grey images by SGD: a whole program for docs/external-trainer.md, without a
 * library but C's own. Compile it with
 *
 *     cc -O2 -o train softmax.c -lm
 *
 * A round:          train
 * A first model:    train zeros PIXELS CLASSES FILE
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    float *pixels; /* D of them, from 0 to 1 */
    int label;
    int validates; /* 0: it is learnt from */
} Image;

static Image *images;
static int count, D, K;
static float *weight, *bias; /* K * D, row by row; K */

static void fail(const char *what, const char *where)
{
    fprintf(stderr, "%s: %s\n", where, what);
    exit(1);
}

static void *room(size_t bytes)
{
    void *found = calloc(1, bytes);
    if (!found) fail("no memory is left", "train");
    return found;
}

/* --- what there is to read ------------------------------------------------------------------------------------- */

static char *content(const char *path, long *size)
{
    FILE *file = fopen(path, "rb");
    char *text;
    if (!file || fseek(file, 0, SEEK_END) || (*size = ftell(file)) < 0) fail("cannot be read", path);
    rewind(file);
    text = room(*size + 1); /* a zero ends it, whatever it holds */
    if (fread(text, 1, *size, file) != (size_t)*size) fail("cannot be read", path);
    fclose(file);
    return text;
}

/* The number behind a key that begins a line of round.yaml: each of its settings has a line of its own. */
static double setting(const char *yaml, const char *key, double otherwise)
{
    const char *line = yaml;
    size_t length = strlen(key);
    for (; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        const char *word = line + strspn(line, " ");
        if (!strncmp(word, key, length) && word[length] == ':') return atof(word + length + 1);
    }
    return otherwise;
}

/* A grey image, PGM of 8 bits: its width and height, the highest value, and one byte for each pixel. */
static float *pixels_of(const char *path)
{
    long size;
    int width, height, highest, start = 0, i;
    char *text = content(path, &size);
    float *pixels;
    if (sscanf(text, "P5 %d %d %d%n", &width, &height, &highest, &start) != 3 || highest < 1 || highest > 255)
        fail("is no PGM of 8 bits", path);
    if (width * height != D || start + 1 + D > size) fail("has another number of pixels than the model", path);
    pixels = room(D * sizeof *pixels);
    for (i = 0; i < D; i++) pixels[i] = (unsigned char)text[start + 1 + i] / (float)highest;
    free(text);
    return pixels;
}

/* files.csv: split,label,images, and then each file. */
static void read_images(void)
{
    char line[1024], split[16], path[512], whole[600];
    int label;
    FILE *list = fopen("/round/files.csv", "r");
    if (!list || !fgets(line, sizeof line, list)) fail("cannot be read", "files.csv");
    while (fgets(line, sizeof line, list)) {
        if (sscanf(line, "%15[a-z],%d,%511[^,\n]", split, &label, path) != 3 || label < 0 || label >= K)
            fail("has a line without a label", "files.csv");
        snprintf(whole, sizeof whole, "/round/%s", path);
        images = realloc(images, (count + 1) * sizeof *images);
        if (!images) fail("no memory is left", "train");
        images[count].pixels = pixels_of(whole);
        images[count].label = label;
        images[count++].validates = !strcmp(split, "validation");
    }
    fclose(list);
}

/* --- safetensors: eight bytes with the length of a header in JSON, the header, the numbers ----------------------- */

static float *tensor(const char *header, const char *numbers, const char *name, int *rows, int *columns)
{
    char key[32];
    const char *entry, *shape, *offsets;
    long begin, end;
    float *found;
    snprintf(key, sizeof key, "\"%s\":", name);
    entry = strstr(header, key);
    shape = entry ? strstr(entry, "\"shape\":[") : NULL;
    offsets = entry ? strstr(entry, "\"data_offsets\":[") : NULL;
    *columns = 1;
    if (!shape || !offsets || sscanf(shape, "\"shape\":[%d,%d", rows, columns) < 1) fail("lacks a tensor", name);
    if (sscanf(offsets, "\"data_offsets\":[%ld,%ld]", &begin, &end) != 2) fail("lacks a tensor", name);
    if (end - begin != 4L * *rows * *columns) fail("has another size than its shape", name);
    found = room(end - begin);
    memcpy(found, numbers + begin, end - begin); /* little-endian, as this machine's are */
    return found;
}

static void read_model(const char *path)
{
    long size;
    int rows, columns;
    uint64_t length;
    char *text = content(path, &size), *header;
    if (size < 8) fail("is no safetensors file", path);
    memcpy(&length, text, 8);
    if (length > (uint64_t)size - 8) fail("is no safetensors file", path);
    header = room(length + 1);
    memcpy(header, text + 8, length);
    weight = tensor(header, text + 8 + length, "weight", &K, &D);
    bias = tensor(header, text + 8 + length, "bias", &rows, &columns);
    if (rows != K || columns != 1) fail("does not fit the other tensor", "bias");
    free(header);
    free(text);
}

static void write_model(const char *path)
{
    char header[256];
    uint64_t length;
    FILE *file = fopen(path, "wb");
    int written = snprintf(header, sizeof header,
                           "{\"bias\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[0,%d]},"
                           "\"weight\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[%d,%d]}}",
                           K, 4 * K, K, D, 4 * K, 4 * K + 4 * K * D);
    while (written % 8) header[written++] = ' ';
    length = written;
    if (!file || fwrite(&length, 8, 1, file) != 1 || fwrite(header, 1, length, file) != length ||
        fwrite(bias, sizeof *bias, K, file) != (size_t)K ||
        fwrite(weight, sizeof *weight, (size_t)K * D, file) != (size_t)K * D || fclose(file))
        fail("cannot be written", path);
}

/* --- learning -------------------------------------------------------------------------------------------------- */

/* Fills p with the probability of each class; returns the loss, -log p of the right one. */
static double look(const Image *image, double *p)
{
    double largest = -INFINITY, sum = 0;
    int k, d;
    for (k = 0; k < K; k++) {
        p[k] = bias[k];
        for (d = 0; d < D; d++) p[k] += weight[k * D + d] * image->pixels[d];
        if (p[k] > largest) largest = p[k];
    }
    for (k = 0; k < K; k++) sum += p[k] = exp(p[k] - largest);
    for (k = 0; k < K; k++) p[k] /= sum;
    return -log(p[image->label] + 1e-12);
}

/* One step on one image: w <- w - rate * ((p - y) x + l2 w). */
static void step(const Image *image, double rate, double l2, double *p)
{
    int k, d;
    look(image, p);
    for (k = 0; k < K; k++) {
        double error = p[k] - (k == image->label);
        bias[k] -= rate * error;
        for (d = 0; d < D; d++) weight[k * D + d] -= rate * (error * image->pixels[d] + l2 * weight[k * D + d]);
    }
}

static uint64_t state; /* of xorshift64* (Vigna 2016) */

static uint64_t draw(void)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 2685821657736338717u;
}

/* One line of metrics.csv: over one set, the mean loss, and as the score the share of right answers. */
static void tell(FILE *table, int epoch, int validates, double *p)
{
    double loss = 0;
    int i, k, right = 0, seen = 0;
    for (i = 0; i < count; i++) {
        int best = 0;
        if (images[i].validates != validates) continue;
        loss += look(&images[i], p);
        for (k = 1; k < K; k++)
            if (p[k] > p[best]) best = k;
        right += best == images[i].label;
        seen++;
    }
    if (seen)
        fprintf(table, "%d,%s,%.4f,%.4f\n", epoch, validates ? "validation" : "train", loss / seen, (double)right / seen);
}

static void train(void)
{
    long size;
    char *yaml = content("/round/round.yaml", &size);
    int epochs = (int)setting(yaml, "epochs", 0), epoch, i;
    double rate = setting(yaml, "learning_rate", 0.1), l2 = setting(yaml, "l2", 0), *p;
    FILE *table = fopen("/output/metrics.csv", "w");
    state = (uint64_t)setting(yaml, "seed", 1) | 1;
    read_model("/round/received.safetensors");
    read_images();
    p = room(K * sizeof *p);
    if (!table) fail("cannot be written", "metrics.csv");
    fprintf(table, "epoch,split,loss,score\n");
    tell(table, 0, 1, p); /* what the received model is worth: by this the best model of the run is chosen */
    for (epoch = 1; epoch <= epochs; epoch++) {
        for (i = count - 1; i > 0; i--) { /* another order in each epoch (Fisher and Yates) */
            int j = (int)(draw() % (uint64_t)(i + 1));
            Image other = images[i];
            images[i] = images[j];
            images[j] = other;
        }
        for (i = 0; i < count; i++)
            if (!images[i].validates) step(&images[i], rate, l2, p);
        tell(table, epoch, 0, p);
        tell(table, epoch, 1, p);
    }
    if (fclose(table)) fail("cannot be written", "metrics.csv");
    if (epochs) write_model("/output/trained.safetensors"); /* the closing round only measures */
}

int main(int words, char **word)
{
    if (words == 5 && !strcmp(word[1], "zeros")) {
        D = atoi(word[2]);
        K = atoi(word[3]);
        if (D < 1 || K < 1 || (double)D * K > 1e8) fail("PIXELS and CLASSES must be numbers", "zeros");
        weight = room((size_t)K * D * sizeof *weight);
        bias = room(K * sizeof *bias);
        write_model(word[4]);
    } else if (words == 1) {
        train();
    } else {
        fail("takes nothing, or zeros PIXELS CLASSES FILE", word[0]);
    }
    return 0;
}
