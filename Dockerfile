# The CPU build of torch, trimtab and what its commands need. Versions are those of pins.txt.
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /trimtab
COPY . .
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu "$(grep '^torch==' pins.txt)" \
 && pip install --no-cache-dir -c pins.txt . ./lab
CMD ["trimtab", "--help"]
